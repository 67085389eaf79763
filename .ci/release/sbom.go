package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// unknown is SPDX's word for what nothing states.
const unknown = "NOASSERTION"

// document is an SPDX document in the making.
type document struct {
	v2_3.Document
	licenses [][]string // rows of a library, the address of its license, and its license
}

// writeSBOM writes what each program is compiled of, in SPDX: the modules that Go recorded in it, with the licenses of
// the rows of CSV, and Go itself.
func writeSBOM(file, version string, at time.Time, programs []string, licenses io.Reader) error {
	rows, err := csv.NewReader(licenses).ReadAll()
	if err != nil {
		return fmt.Errorf("licenses: %w", err)
	}
	d := document{licenses: rows}
	d.SPDXVersion, d.DataLicense, d.SPDXIdentifier = v2_3.Version, v2_3.DataLicense, "DOCUMENT"
	d.DocumentName = "tenant-rate-limiting-" + version
	d.DocumentNamespace = source + "/sbom/" + version
	d.CreationInfo = &v2_3.CreationInfo{
		Creators: []common.Creator{{CreatorType: "Organization", Creator: "tenant-rate-limiting"}},
		Created:  at.Format(time.RFC3339),
	}
	for _, program := range programs {
		if err := d.addProgram(program, version); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
	}
	var out bytes.Buffer
	if err := spdxjson.Write(&d.Document, &out, spdxjson.Indent(" ")); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}

// addProgram adds the program in a file and what it depends on. The file is in a folder of its architecture's name.
func (d *document) addProgram(path, version string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return err
	}
	name := filepath.Base(filepath.Dir(path)) + "/" + filepath.Base(path)
	program := d.add("Program", name, version, "Apache-2.0")
	program.PackageFileName, program.PrimaryPackagePurpose = name, "APPLICATION"
	program.PackageChecksums = []common.Checksum{
		{Algorithm: common.SHA256, Value: fmt.Sprintf("%x", sha256.Sum256(content))},
	}
	d.relate("DOCUMENT", common.TypeRelationshipDescribe, program)
	modules := append(info.Deps, &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")})
	for _, m := range modules {
		if m.Replace != nil {
			m = m.Replace
		}
		license := d.license(m.Path, modules)
		d.relate(program.PackageSPDXIdentifier, common.TypeRelationshipDependsOn, d.add("Module", m.Path, m.Version, license))
	}
	return nil
}

var noID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// add returns the package of that kind, name and version, which it adds if it is new.
func (d *document) add(kind, name, version, license string) *v2_3.Package {
	id := common.ElementID(noID.ReplaceAllString(kind+"-"+name+"-"+version, "-"))
	for _, p := range d.Packages {
		if p.PackageSPDXIdentifier == id {
			return p
		}
	}
	p := &v2_3.Package{
		PackageName:             name,
		PackageSPDXIdentifier:   id,
		PackageVersion:          version,
		PackageDownloadLocation: unknown,
		PackageLicenseConcluded: license,
		PackageLicenseDeclared:  license,
		PackageCopyrightText:    unknown,
	}
	if kind == "Module" {
		p.PackageExternalReferences = []*v2_3.PackageExternalReference{{
			Category: "PACKAGE-MANAGER", RefType: "purl", Locator: "pkg:golang/" + name + "@" + version,
		}}
	}
	d.Packages = append(d.Packages, p)
	return p
}

func (d *document) relate(from common.ElementID, kind string, to *v2_3.Package) {
	d.Relationships = append(d.Relationships, &v2_3.Relationship{
		RefA:         common.DocElementID{ElementRefID: from},
		RefB:         common.DocElementID{ElementRefID: to.PackageSPDXIdentifier},
		Relationship: kind,
	})
}

// license returns the licenses of the libraries in a module. Each library is in the module with the longest path of
// those that have it.
func (d *document) license(module string, modules []*debug.Module) string {
	if module == "stdlib" {
		return "BSD-3-Clause"
	}
	var found []string
	for _, row := range d.licenses {
		owner := ""
		for _, m := range modules {
			if strings.HasPrefix(row[0]+"/", m.Path+"/") && len(m.Path) > len(owner) {
				owner = m.Path
			}
		}
		if owner == module && !slices.Contains(found, row[2]) {
			found = append(found, row[2])
		}
	}
	if found == nil {
		return unknown
	}
	slices.Sort(found)
	return strings.Join(found, " AND ")
}
