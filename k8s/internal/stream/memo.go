// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"hash/maphash"

	"k8s.io/apimachinery/pkg/types"
)

// Memo remembers what was judged: a look costs much, and mostly nothing has changed since the last one.
type Memo struct {
	seed   maphash.Seed
	known  map[uint64]judged
	booked map[bookKey]booking
}

type bookKey struct {
	stream types.UID
	node   string
}

// booking is where a stream was accepted: its place is kept while its pods are made anew.
type booking struct {
	generation    int64
	port          string
	speed, packet int64
}

type judged struct {
	faults  []*Fault
	latency []int64
}

// NewMemo is empty.
func NewMemo() *Memo { return &Memo{maphash.MakeSeed(), map[uint64]judged{}, map[bookKey]booking{}} }

// memoMax bounds it.
const memoMax = 1 << 14

func (m *Memo) judge(p *Port, demands []Demand) ([]*Fault, []int64) {
	var hash maphash.Hash
	hash.SetSeed(m.seed)
	maphash.WriteComparable(&hash, [4]int64{p.LinkSpeed, p.HandOver, p.Gates.Cycle, int64(p.Gates.Always)})
	maphash.WriteComparable(&hash, p.Gates.with)
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
		found.faults, found.latency = p.Judge(demands)
		if len(m.known) >= memoMax {
			clear(m.known)
		}
		m.known[key] = found
	}
	return found.faults, found.latency
}
