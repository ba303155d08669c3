// SPDX-License-Identifier: Apache-2.0

package nodecall

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// What of HTTP/2 (RFC 9113) one client of one server needs: a call at a time, in its stream.
const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	frameData, frameHeaders, frameReset, frameSettings, framePing    = 0x0, 0x1, 0x3, 0x4, 0x6
	frameGoAway, frameWindow, frameContinuation                      = 0x7, 0x8, 0x9
	flagEndStream, flagAck, flagEndHeaders, flagPadded, flagPriority = 0x1, 0x1, 0x4, 0x8, 0x20

	settingWindow = 0x4
	frameMax      = 16384    // octets of a frame's payload: the default, which we leave
	windowDefault = 65535    // octets that may be sent before the other side has said more
	replyMax      = 16 << 20 // octets of one answer, and what the server may send in all calls of a connection
)

var errProtocol = errors.New("no answer by the rules of HTTP/2")

// One connection with its streams, one after the other.
type stream struct {
	socket  *socket
	encoder *hpack.Encoder
	block   bytes.Buffer // of the encoder
	decoder *hpack.Decoder

	id            uint32 // of the last call
	window        int64  // octets of data that we may send, in this stream
	windowAll     int64  // and in all
	windowInitial int64

	body     []byte
	headers  []byte // a block that goes on
	headEnds bool   // END_STREAM stood on the HEADERS whose block goes on
	ended    bool
	status   string // grpc-status
	message  string
	http     string // :status
}

func frame(kind, flags byte, id uint32, payload []byte) []byte {
	head := make([]byte, 9, 9+len(payload))
	binary.BigEndian.PutUint32(head, uint32(len(payload))<<8|uint32(kind))
	head[4] = flags
	binary.BigEndian.PutUint32(head[5:], id)
	return append(head, payload...)
}

// Open greets: the server's own greeting is read with its first answer.
func open(ctx context.Context, path string) (*stream, error) {
	socket, err := dial(ctx, path)
	if err != nil {
		return nil, err
	}
	s := &stream{socket: socket, windowAll: windowDefault, windowInitial: windowDefault}
	s.encoder = hpack.NewEncoder(&s.block)
	s.decoder = hpack.NewDecoder(4096, s.header)
	s.decoder.SetMaxStringLength(frameMax)
	more := make([]byte, 4)
	binary.BigEndian.PutUint32(more, replyMax-windowDefault)
	settings := binary.BigEndian.AppendUint32([]byte{0, settingWindow}, replyMax)
	greeting := append([]byte(preface), frame(frameSettings, 0, 0, settings)...)
	if err := socket.write(ctx, append(greeting, frame(frameWindow, 0, 0, more)...)); err != nil {
		socket.close()
		return nil, err
	}
	return s, nil
}

func (s *stream) header(field hpack.HeaderField) {
	switch field.Name {
	case ":status":
		s.http = field.Value
	case "grpc-status":
		s.status = field.Value
	case "grpc-message":
		s.message = field.Value
	}
}

// Send begins a call.
func (s *stream) send(ctx context.Context, method string, request []byte) error {
	s.id = max(s.id+2, 1) | 1
	s.body, s.headers, s.ended, s.status, s.message, s.http = nil, nil, false, "", "", ""
	s.window = s.windowInitial
	s.block.Reset()
	fields := [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/ktsn.v1.Node/" + method}, {":authority", "ktsnd"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {"user-agent", "tsn-cni/" + Version},
	}
	for _, field := range fields {
		// Writing to memory does not fail.
		_ = s.encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))
	body = append(body, request...)
	out := frame(frameHeaders, flagEndHeaders, s.id, s.block.Bytes())
	for {
		// As much as the windows allow; what is more waits for the server's word.
		part := body[:min(int64(len(body)), frameMax, max(s.window, 0), max(s.windowAll, 0))]
		body = body[len(part):]
		s.window, s.windowAll = s.window-int64(len(part)), s.windowAll-int64(len(part))
		var flags byte
		if len(body) == 0 {
			flags = flagEndStream
		}
		if len(part) > 0 || flags != 0 {
			out = append(out, frame(frameData, flags, s.id, part)...)
		}
		if flags != 0 || s.window <= 0 || s.windowAll <= 0 {
			if err := s.socket.write(ctx, out); err != nil {
				return err
			}
			out = nil
		}
		if flags != 0 || s.ended {
			return nil
		}
		for (s.window <= 0 || s.windowAll <= 0) && !s.ended {
			if err := s.read(ctx); err != nil {
				return err
			}
		}
	}
}

// Receive waits for the call's end; code and words are the server's.
func (s *stream) receive(ctx context.Context) (reply []byte, code codes.Code, words string, err error) {
	for !s.ended {
		if err := s.read(ctx); err != nil {
			return nil, codes.Unavailable, "", err
		}
	}
	number, err := strconv.ParseUint(s.status, 10, 32)
	if err != nil {
		return nil, codes.Unavailable, "", fmt.Errorf("%w (HTTP status %q)", errProtocol, s.http)
	}
	if number != 0 {
		if decoded, err := url.PathUnescape(s.message); err == nil {
			s.message = decoded
		}
		return nil, codes.Code(number), s.message, nil
	}
	if len(s.body) < 5 || s.body[0] != 0 || uint64(binary.BigEndian.Uint32(s.body[1:])) != uint64(len(s.body)-5) {
		return nil, codes.Internal, "", errProtocol
	}
	return s.body[5:], codes.OK, "", nil
}

// Read takes one frame and does what it asks for.
func (s *stream) read(ctx context.Context) error {
	var head [9]byte
	if err := s.socket.fill(ctx, head[:]); err != nil {
		return err
	}
	length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	if length > frameMax {
		return fmt.Errorf("%w (a frame of %d octets)", errProtocol, length)
	}
	payload := make([]byte, length)
	if err := s.socket.fill(ctx, payload); err != nil {
		return err
	}
	kind, flags, id := head[3], head[4], binary.BigEndian.Uint32(head[5:])&^(1<<31)
	switch kind {
	case frameSettings:
		if flags&flagAck != 0 {
			return nil
		}
		s.settings(payload)
		return s.socket.write(ctx, frame(frameSettings, flagAck, 0, nil))
	case framePing:
		if flags&flagAck != 0 {
			return nil
		}
		return s.socket.write(ctx, frame(framePing, flagAck, 0, payload))
	case frameWindow:
		return s.widen(id, payload)
	case frameGoAway:
		if len(payload) < 8 || binary.BigEndian.Uint32(payload)&^(1<<31) < s.id {
			return errors.New("it is ending")
		}
	case frameReset:
		if id == s.id && !s.ended {
			return fmt.Errorf("the call was reset (%x)", payload)
		}
	case frameData, frameHeaders, frameContinuation:
		return s.content(kind, flags, id, payload)
	}
	return nil
}

func (s *stream) settings(payload []byte) {
	for ; len(payload) >= 6; payload = payload[6:] {
		if binary.BigEndian.Uint16(payload) == settingWindow {
			value := int64(binary.BigEndian.Uint32(payload[2:]))
			s.window += value - s.windowInitial
			s.windowInitial = value
		}
	}
}

func (s *stream) widen(id uint32, payload []byte) error {
	if len(payload) != 4 {
		return errProtocol
	}
	more := int64(binary.BigEndian.Uint32(payload) &^ (1 << 31))
	switch id {
	case 0:
		s.windowAll += more
	case s.id:
		s.window += more
	}
	return nil
}

// Content of the call's stream; blocks of headers are read whatever their stream, since the decoder remembers them.
func (s *stream) content(kind, flags byte, id uint32, payload []byte) error {
	payload, err := bare(kind, flags, payload)
	if err != nil {
		return err
	}
	if kind == frameData {
		if id != s.id {
			return nil
		}
		if len(s.body)+len(payload) > replyMax {
			return fmt.Errorf("%w (an answer of more than %d octets)", errProtocol, replyMax)
		}
		s.body = append(s.body, payload...)
		s.ended = s.ended || flags&flagEndStream != 0
		return nil
	}
	if kind == frameHeaders {
		s.headEnds = flags&flagEndStream != 0 && id == s.id
	}
	if s.headers = append(s.headers, payload...); len(s.headers) > 4*frameMax {
		return errProtocol
	}
	if flags&flagEndHeaders == 0 {
		return nil
	}
	before := [3]string{s.status, s.message, s.http}
	_, err = s.decoder.Write(s.headers)
	s.headers = nil
	if id != s.id { // of a call that nobody waits for any more
		s.status, s.message, s.http = before[0], before[1], before[2]
	}
	if err := errors.Join(err, s.decoder.Close()); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	s.ended = s.ended || s.headEnds
	return nil
}

// Bare takes padding and priority off.
func bare(kind, flags byte, payload []byte) ([]byte, error) {
	if kind == frameContinuation {
		return payload, nil
	}
	padding := 0
	if flags&flagPadded != 0 {
		if len(payload) == 0 {
			return nil, errProtocol
		}
		padding, payload = int(payload[0]), payload[1:]
	}
	if kind == frameHeaders && flags&flagPriority != 0 {
		if len(payload) < 5 {
			return nil, errProtocol
		}
		payload = payload[5:]
	}
	if padding > len(payload) {
		return nil, errProtocol
	}
	return payload[:len(payload)-padding], nil
}
