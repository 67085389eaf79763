// Package docs holds pages of the documentation that programs show too.
package docs

import _ "embed"

// Integration is the page on clients and other layers, in Markdown.
//
//go:embed integration.md
var Integration string
