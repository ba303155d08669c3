// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
)

// apiAccess says where the API server is and who we are there.
type apiAccess struct {
	Server   string `json:"server"`
	CAFile   string `json:"caFile"`
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
}

// api is a connection to the API server.
type api struct {
	client *http.Client
	server string
}

type metadata struct {
	UID         string            `json:"uid"`
	Annotations map[string]string `json:"annotations"`
}

type pod struct {
	Metadata metadata `json:"metadata"`
}

type definition struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Config string `json:"config"`
	} `json:"spec"`
}

func (a apiAccess) connect() (*api, error) {
	authority, err := os.ReadFile(a.CAFile)
	if err != nil {
		return nil, err
	}
	known := x509.NewCertPool()
	if !known.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s: no certificate", a.CAFile)
	}
	own, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: known, Certificates: []tls.Certificate{own}}}
	return &api{client: &http.Client{Transport: transport}, server: a.Server}, nil
}

func (a *api) ask(ctx context.Context, method, path, kind string, body []byte, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, a.server+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	reply, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, 4<<20))
	if err != nil {
		return err
	}
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, reply.Status, text)
	}
	return json.Unmarshal(text, into)
}

func (a *api) pod(ctx context.Context, namespace, name string) (pod, error) {
	var found pod
	path := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
	err := a.ask(ctx, http.MethodGet, path, "", nil, &found)
	return found, err
}

func (a *api) definition(ctx context.Context, namespace, name string) (definition, error) {
	var found definition
	path := "/apis/k8s.cni.cncf.io/v1/namespaces/" + url.PathEscape(namespace) + "/network-attachment-definitions/" + url.PathEscape(name)
	err := a.ask(ctx, http.MethodGet, path, "", nil, &found)
	return found, err
}

// setStatus writes the pod's network-status annotation.
func (a *api) setStatus(ctx context.Context, args podArgs, statuses []networkStatus) error {
	status, err := json.MarshalIndent(statuses, "", "    ")
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{statusAnnotation: string(status)}}})
	if err != nil {
		return err
	}
	path := "/api/v1/namespaces/" + url.PathEscape(string(args.K8S_POD_NAMESPACE)) + "/pods/" + url.PathEscape(string(args.K8S_POD_NAME))
	var ignored pod
	return a.ask(ctx, http.MethodPatch, path+"/status", "application/merge-patch+json", patch, &ignored)
}
