// SPDX-License-Identifier: Apache-2.0

// Protogen writes the Go types of ktsnd's control API.
//
// In: the folder with ktsn/v1/node.proto, the folder for the result, the programs protoc-gen-go and protoc-gen-go-grpc.
// Out: node.pb.go, the messages, and node_grpc.pb.go, the service; or, with -check, exit status 1 and a line for each file that is stale.
// No protoc is needed: the file is parsed in Go. It never touches anything else.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	source     = "ktsn/v1/node.proto"
	importPath = "ktsn.io/ktsn/k8s/internal/nodeapi"
)

func main() {
	folder := flag.String("proto", "../../proto", "folder with "+source)
	out := flag.String("out", "../internal/nodeapi", "folder for the result")
	plugins := flag.String("plugins", "", "folder with protoc-gen-go and protoc-gen-go-grpc")
	check := flag.Bool("check", false, "write nothing; fail when a file is stale")
	flag.Parse()
	if err := run(*folder, *out, *plugins, *check); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(folder, out, plugins string, check bool) error {
	file, err := parse(folder)
	if err != nil {
		return err
	}
	messages, err := generate(filepath.Join(plugins, "protoc-gen-go"), file)
	if err != nil {
		return fmt.Errorf("protoc-gen-go: %w", err)
	}
	service, err := generate(filepath.Join(plugins, "protoc-gen-go-grpc"), file)
	if err != nil {
		return fmt.Errorf("protoc-gen-go-grpc: %w", err)
	}
	maps.Copy(messages, service)
	var stale []error
	for name, content := range messages {
		path := filepath.Join(out, name)
		if !check {
			if err := os.WriteFile(path, content, 0o644); err != nil {
				return err
			}
			continue
		}
		if found, err := os.ReadFile(path); err != nil || !bytes.Equal(found, content) {
			stale = append(stale, fmt.Errorf("%s is not what proto/%s gives: run scripts/go.sh generate", path, source))
		}
	}
	return errors.Join(stale...)
}

// Parse reads the file with its comments, which the generated types repeat.
func parse(folder string) (*descriptorpb.FileDescriptorProto, error) {
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{folder}},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), source)
	if err != nil {
		return nil, err
	}
	return protoutil.ProtoFromFileDescriptor(files[0]), nil
}

// Generate asks one of protoc's plugins, which speak by standard input and output.
func generate(plugin string, file *descriptorpb.FileDescriptorProto) (map[string][]byte, error) {
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate:  []string{source},
		Parameter:       proto.String("module=" + importPath + ",M" + source + "=" + importPath),
		ProtoFile:       []*descriptorpb.FileDescriptorProto{file},
		CompilerVersion: &pluginpb.Version{Major: proto.Int32(0), Minor: proto.Int32(0), Patch: proto.Int32(0)},
	})
	if err != nil {
		return nil, err
	}
	command := exec.Command(plugin)
	command.Stdin, command.Stderr = bytes.NewReader(request), os.Stderr
	answer, err := command.Output()
	if err != nil {
		return nil, err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(answer, &response); err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	files := map[string][]byte{}
	for _, generated := range response.File {
		files[generated.GetName()] = []byte(generated.GetContent())
	}
	return files, nil
}
