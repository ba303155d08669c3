// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"hash/maphash"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Memo remembers what was judged: a look costs much, and mostly nothing has changed since the last one.
type Memo struct {
	seed   maphash.Seed
	known  map[uint64]judged // in this look
	before map[uint64]judged // in the one before
	booked map[bookKey]booking
}

type bookKey struct {
	stream types.UID
	node   string
}

// booking is where a stream was accepted: its place is kept while its pods are replaced.
type booking struct {
	generation    int64
	port          string
	speed, packet int64
	pods          []string
	seen          time.Time // when there were pods last
}

type judged struct {
	faults  []*Fault
	latency []int64
}

// NewMemo is empty.
func NewMemo() *Memo {
	return &Memo{maphash.MakeSeed(), map[uint64]judged{}, nil, map[bookKey]booking{}}
}

// turn begins a look: what the last one did not ask is forgotten.
func (m *Memo) turn() { m.before, m.known = m.known, map[uint64]judged{} }

func (m *Memo) judge(p *Port, demands []Demand, asks bool) ([]*Fault, []int64) {
	var hash maphash.Hash
	hash.SetSeed(m.seed)
	maphash.WriteComparable(&hash, [4]int64{p.LinkSpeed, p.HandOver, p.Gates.Cycle, int64(p.Gates.Always)})
	maphash.WriteComparable(&hash, p.Gates.with)
	maphash.WriteComparable(&hash, asks)
	for class := range Classes {
		maphash.WriteComparable(&hash, len(p.Gates.Open[class]))
		for _, span := range p.Gates.Open[class] {
			maphash.WriteComparable(&hash, span)
		}
	}
	for index := range demands {
		maphash.WriteComparable(&hash, demands[index])
	}
	key := hash.Sum64()
	found, has := m.known[key]
	if !has {
		if found, has = m.before[key]; !has {
			found.faults, found.latency = p.Judge(demands, asks)
		}
		m.known[key] = found
	}
	return found.faults, found.latency
}
