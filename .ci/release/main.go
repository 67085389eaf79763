// The command release makes the parts of a release for which there is no program: the certificates of authorities, the
// image of the programs in OCI's layout, and the list of what is compiled into them, in SPDX. Same input, same bytes:
// the time is SOURCE_DATE_EPOCH.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

const usage = `usage: release certificates
       release image LAYOUT VERSION ARCH=TAR ...
       release sbom FILE VERSION PROGRAM ...   with lines "module,url,license" on the standard input`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH must be the seconds since 1970 of the release: %w", err)
	}
	at := time.Unix(seconds, 0).UTC()
	switch {
	case len(args) == 1 && args[0] == "certificates":
		return writeCertificates(os.Stdout)
	case len(args) > 3 && args[0] == "image":
		return writeImage(args[1], args[2], at, args[3:])
	case len(args) > 3 && args[0] == "sbom":
		return writeSBOM(args[1], args[2], at, args[3:], os.Stdin)
	}
	return fmt.Errorf("%s", usage)
}
