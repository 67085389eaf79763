// Package fromkong converts the configs of Kong's own rate limiting plugins in a decK file into configs of this plugin:
// rate-limiting, rate-limiting-advanced and response-ratelimiting.
//
// Convert never guesses. An entry with a value that this plugin cannot express stays in the file as it is, with a
// Problem that names the value. What works otherwise afterwards is listed as a Difference. The remaining text of the
// file is kept byte by byte where its layout allows that.
//
// What Kong's plugins do is taken from their source (kong/plugins in Kong's repository) and, for
// rate-limiting-advanced, from Kong's documentation. docs/migrating-from-kong.md has the table of differences.
package fromkong
