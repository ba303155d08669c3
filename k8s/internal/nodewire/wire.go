// SPDX-License-Identifier: Apache-2.0

package nodewire

import (
	"encoding/binary"
	"errors"
)

// Kinds of values (https://protobuf.dev/programming-guides/encoding): a number of one to ten octets, fixed ones, octets with
// their length before them.
const (
	kindNumber, kindFixed64, kindOctets, kindFixed32 = 0, 1, 2, 5
	kindBits                                         = 3
)

var errBroken = errors.New("no message of ktsnd's API: it ends too early")

func appendTag(b []byte, field, kind uint64) []byte {
	return binary.AppendUvarint(b, field<<kindBits|kind)
}

func appendOctets(b []byte, field uint64, value []byte) []byte {
	b = binary.AppendUvarint(appendTag(b, field, kindOctets), uint64(len(value)))
	return append(b, value...)
}

// What is empty is not sent; the default says as much.
func appendText(b []byte, field uint64, value string) []byte {
	if value == "" {
		return b
	}
	return appendOctets(b, field, []byte(value))
}

func appendTexts(b []byte, field uint64, values []string) []byte {
	for _, value := range values {
		b = appendOctets(b, field, []byte(value))
	}
	return b
}

func appendNumber[T uint32 | uint64](b []byte, field uint64, value T) []byte {
	if value == 0 {
		return b
	}
	return binary.AppendUvarint(appendTag(b, field, kindNumber), uint64(value))
}

func appendNumbers(b []byte, field uint64, values []uint32) []byte {
	if len(values) == 0 {
		return b
	}
	var all []byte
	for _, value := range values {
		all = binary.AppendUvarint(all, uint64(value))
	}
	return appendOctets(b, field, all)
}

// An `optional` field is sent when it is there, whatever it holds.
func appendGiven(b []byte, field uint64, value *uint32) []byte {
	if value == nil {
		return b
	}
	return binary.AppendUvarint(appendTag(b, field, kindNumber), uint64(*value))
}

func appendTruth(b []byte, field uint64, value *bool) []byte {
	if value == nil {
		return b
	}
	number := uint32(0)
	if *value {
		number = 1
	}
	return appendGiven(b, field, &number)
}

// EachOf hands over each value of one field of a message; what it does not know it passes over.
func eachOf(message []byte, wanted uint64, take func(value []byte) error) error {
	for len(message) > 0 {
		tag, size := binary.Uvarint(message)
		if size <= 0 {
			return errBroken
		}
		message = message[size:]
		length := uint64(0)
		switch tag & (1<<kindBits - 1) {
		case kindNumber:
			_, size = binary.Uvarint(message)
		case kindFixed64:
			length, size = 8, 0
		case kindFixed32:
			length, size = 4, 0
		case kindOctets:
			length, size = binary.Uvarint(message)
			if size == 0 {
				return errBroken
			}
		default:
			return errBroken
		}
		if size < 0 || (size == 0 && length == 0) || length > uint64(len(message)-size) {
			return errBroken
		}
		value := message[size : uint64(size)+length]
		message = message[uint64(size)+length:]
		if tag == wanted<<kindBits|kindOctets {
			if err := take(value); err != nil {
				return err
			}
		}
	}
	return nil
}
