// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// hdrCookie of a histogram in HdrHistogram's V2 encoding, with counts of up to 64 bits.
const hdrCookie = 0x1c849303 | 0x10

// hdrHeader: cookie, length, offset, digits (4 octets each), lowest, highest, ratio (8 each).
const hdrHeader = 40

// indexMax bounds what is walked: a histogram with 5 digits over 64 bits has fewer counts.
const indexMax = 1 << 24

// distribution is what Prometheus wants of a histogram.
type distribution struct {
	count   uint64
	sum     float64            // of the middles of the values' ranges, in seconds
	buckets map[float64]uint64 // upper bound in seconds → how many are not above it
}

// decode reads an HdrHistogram of nanoseconds, V2 encoding, not compressed.
func decode(data []byte, bounds []float64) (distribution, error) {
	found := distribution{buckets: map[float64]uint64{}}
	for _, bound := range bounds {
		found.buckets[bound] = 0
	}
	if len(data) == 0 {
		return found, nil
	}
	if len(data) < hdrHeader || binary.BigEndian.Uint32(data) != hdrCookie {
		return found, errors.New("histogram: not HdrHistogram's V2 encoding")
	}
	length := binary.BigEndian.Uint32(data[4:])
	digits := binary.BigEndian.Uint32(data[12:])
	lowest := binary.BigEndian.Uint64(data[16:])
	counts := data[hdrHeader:]
	if uint64(length) > uint64(len(counts)) || digits < 1 || digits > 5 || lowest == 0 || lowest > 1<<32 {
		return found, fmt.Errorf("histogram: header with length %d, %d digits, lowest %d", length, digits, lowest)
	}
	scale := scaleOf(digits, lowest)
	for counts, index := counts[:length], 0; len(counts) > 0; {
		value, octets := zigZag(counts)
		if octets == 0 {
			return found, errors.New("histogram: cut off")
		}
		counts = counts[octets:]
		if value < 0 { // so many zeros
			if value < -indexMax {
				return found, errors.New("histogram: too long")
			}
			index -= int(value)
		} else {
			found.add(scale, index, uint64(value))
			index++
		}
		if index > indexMax {
			return found, errors.New("histogram: too long")
		}
	}
	return found, nil
}

func (d *distribution) add(scale scale, index int, count uint64) {
	if count == 0 {
		return
	}
	low, high := scale.rangeOf(index)
	d.count += count
	d.sum += float64(count) * (float64(low) + float64(high)) / 2 / 1e9
	for bound := range d.buckets {
		if float64(high)/1e9 <= bound {
			d.buckets[bound] += count
		}
	}
}

// scale maps indices to values: buckets of twice the width each, each with halfCount parts.
type scale struct{ unit, half int }

func scaleOf(digits uint32, lowest uint64) scale {
	resolution := uint64(2)
	for range digits {
		resolution *= 10
	}
	// ⌈log2(resolution)⌉ parts in the first bucket; resolution is no power of two.
	return scale{unit: bits.Len64(lowest) - 1, half: bits.Len64(resolution-1) - 1}
}

// rangeOf is the range of values with this index.
func (s scale) rangeOf(index int) (low, high uint64) {
	halfCount := 1 << s.half
	bucket, part := index>>s.half-1, index&(halfCount-1)+halfCount
	if bucket < 0 {
		bucket, part = 0, part-halfCount
	}
	width := min(s.unit+bucket, 62)
	low = uint64(part) << width
	return low, low + 1<<width - 1
}

// zigZag reads one LEB128 number of at most nine octets; 0 octets: there is none.
func zigZag(data []byte) (value int64, octets int) {
	var raw uint64
	for index := 0; index < len(data) && index < 9; index++ {
		octet := uint64(data[index])
		if index == 8 { // the ninth has all of its bits
			raw |= octet << 56
			return int64(raw>>1) ^ -int64(raw&1), 9
		}
		raw |= (octet & 0x7f) << (7 * index)
		if octet < 0x80 {
			return int64(raw>>1) ^ -int64(raw&1), index + 1
		}
	}
	return 0, 0
}
