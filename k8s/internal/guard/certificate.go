// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"os"
	"sync"
	"time"
)

const (
	// readEvery is how often the files are looked at.
	readEvery = time.Minute
	// A certificate that signs itself holds so long, and another one is made so long before its end.
	selfSigned = 365 * 24 * time.Hour
	selfAgain  = 30 * 24 * time.Hour
)

// keyPair is a certificate that may change.
type keyPair struct {
	certFile, keyFile string
	now               func() time.Time

	mutex  sync.Mutex
	pair   *tls.Certificate
	readAt time.Time
}

// get gives the certificate. Files that cannot be read leave the one before.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	now := k.now()
	if k.pair != nil && now.Sub(k.readAt) < readEvery {
		return k.pair, nil
	}
	var pair tls.Certificate
	var err error
	switch {
	case k.certFile != "":
		pair, err = tls.LoadX509KeyPair(k.certFile, k.keyFile)
	case k.pair != nil && now.Before(k.pair.Leaf.NotAfter.Add(-selfAgain)):
		pair = *k.pair
	default:
		pair, err = ownCertificate(now)
	}
	if err != nil {
		if k.pair == nil {
			return nil, err
		}
		return k.pair, nil
	}
	k.pair, k.readAt = &pair, now
	return k.pair, nil
}

// ownCertificate signs itself: it keeps a listener on the way out, and says nothing about who answers.
func ownCertificate(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	host, _ := os.Hostname()
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: "ktsn " + host}, DNSNames: []string{host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSigned),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
