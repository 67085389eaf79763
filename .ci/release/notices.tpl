
The programs contain the following works of others. Portions of this software are copyright (c) 1996-2010 The FreeType
Project (www.freetype.org). All rights reserved. Of its two licenses the FreeType License holds here.
The certificates of authorities in the image are those of Mozilla, under the Mozilla Public License 2.0.
{{range .}}
------------------------------------------------------------------------------------------------------------------------
{{.Name}} ({{.LicenseName}})

{{if ne .LicenseName "Unknown"}}{{.LicenseText}}{{end}}{{end}}

------------------------------------------------------------------------------------------------------------------------
Go (BSD-3-Clause)

