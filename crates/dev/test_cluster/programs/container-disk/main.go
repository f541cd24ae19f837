// Stand-in for KubeVirt's container-disk, the only program of a container made from a guest's image,
// which may hold nothing else that runs. KubeVirt's listens at a socket, by whose peer virt-handler
// finds the image's files and mounts them into the launcher's container. This one copies the files of
// /boot to the path that it is told; they are there as a whole once the path is. It ends when the
// path is gone.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

const (
	boot         = "/boot"
	lookInterval = time.Second
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--no-op" {
		return
	}
	if len(os.Args) != 3 || os.Args[1] != "--copy-path" {
		fail(fmt.Errorf("usage: container-disk --no-op | --copy-path PATH"))
	}
	path := os.Args[2]
	if err := provide(path); err != nil {
		fail(err)
	}
	for {
		if _, err := os.Stat(path); os.IsNotExist(err) {
			return
		}
		time.Sleep(lookInterval)
	}
}

func provide(path string) error {
	unfinished := path + ".new"
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(boot)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		if err := copyFile(filepath.Join(boot, entry.Name()), filepath.Join(unfinished, entry.Name())); err != nil {
			return err
		}
	}
	return os.Rename(unfinished, path)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		target.Close()
		return err
	}
	return target.Close()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "container-disk:", err)
	os.Exit(1)
}
