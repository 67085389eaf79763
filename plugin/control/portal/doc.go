// Package portal serves pages for people: a console for operators, and for each tenant a view of its own limits.
//
// The portal is a client of the REST API ([API]), in the same process and as the caller who is signed in. It shows and
// changes nothing that the API would not show to the same caller or change for it, so roles, the redaction of shared
// limits, the audit and the checks of values are those of the API.
//
// The pages are a table (pages): each row has its path, the roles it is for, and a function of a [visit], which reads
// from the API (get), writes to it (send), and ends with a page (render) or with another one (redirect). Pages are
// rendered here and work without JavaScript; app.js only replaces the parts that a page marks as live.
//
// What operators edit is data: a listing has the rows of one kind, and an action is a write of the API with a form. The
// fields of forms come from the API's OpenAPI document, and the preview of an action is its write as a dry run.
//
// A live part is a template of its page. app.js requests the page again every few seconds with a header (liveHeader),
// for which it answers with that template alone; an answer that has not changed is a 304.
//
// Graphs are tables (chart), from which chart.js draws. The pages of the console keep one range of time in their
// addresses (range.go).
//
// A session starts with a token, which is checked again with every request, or by OpenID Connect (package oidc).
// Sessions are sealed cookies (package session). Writes from other origins are denied, and no page runs or loads
// anything that is not part of this package (the Content-Security-Policy).
//
// Other packages decide what a caller may do (api), and listen (server).
package portal
