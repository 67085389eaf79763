package api_test

import (
	"net/http"
	"strings"
)

// scenarios ask for the answers that are an operation's own, each on a server of its own.
var scenarios = withWebhooks(map[string]func(*contract, operation){
	"list-policies": func(c *contract, o operation) {
		c.made(daily)
		c.check(o, c.do(o.call(viewer)))
	},
	"create-policy": func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.check(o, c.do(o.call(admin)))
	},
	"put-policy": func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.check(o, c.do(o.call(admin)))
		c.check(o, c.do(o.call(admin).with("If-None-Match", "*")))
		other := o.call(admin)
		other.body = strings.Replace(other.body, "1000", "5", 1)
		c.check(o, c.do(other))
	},
	"get-policy": func(c *contract, o operation) {
		c.check(o, c.do(o.call(viewer)))
		c.made(daily)
		c.check(o, c.do(o.call(viewer)))
		c.check(o, c.do(o.call(viewer).with("If-None-Match", `"1-1"`)))
	},
	"put-policy-by-id": changesPolicy,
	"delete-policy":    changesPolicy,
	"list-overrides": func(c *contract, o operation) {
		c.want(c.as("POST", overrides, samples["create-override"].body), http.StatusCreated)
		c.check(o, c.do(o.call(ofAcme)))
	},
	"create-override": func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.check(o, c.do(o.call(admin)))
	},
	"get-override": func(c *contract, o operation) {
		c.check(o, c.do(o.call(ofAcme)))
		c.want(c.as("POST", overrides, samples["create-override"].body), http.StatusCreated)
		c.check(o, c.do(o.call(ofAcme)))
		c.check(o, c.do(o.call(ofAcme).with("If-None-Match", `"1-1"`)))
	},
	"delete-override": func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.want(c.as("POST", overrides, samples["create-override"].body), http.StatusCreated)
		c.check(o, c.do(o.call(admin)))
	},
	"put-override": func(c *contract, o operation) { changesOverride(c, o, overrides, "create-override") },
	"put-general-override": func(c *contract, o operation) {
		changesOverride(c, o, generalOverrides, "create-general-override")
	},
	"list-all-overrides": func(c *contract, o operation) {
		c.want(c.as("POST", generalOverrides, samples["create-general-override"].body), http.StatusCreated)
		c.check(o, c.do(o.call(viewer)))
	},
	"create-general-override": func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.check(o, c.do(o.call(admin)))
	},
	"get-general-override": func(c *contract, o operation) {
		c.check(o, c.do(o.call(viewer)))
		c.want(c.as("POST", generalOverrides, samples["create-general-override"].body), http.StatusCreated)
		c.check(o, c.do(o.call(viewer)))
		c.check(o, c.do(o.call(viewer).with("If-None-Match", `"1-1"`)))
	},
	"delete-general-override": func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.want(c.as("POST", generalOverrides, samples["create-general-override"].body), http.StatusCreated)
		c.check(o, c.do(o.call(admin)))
	},
	"list-org-tokens": func(c *contract, o operation) {
		c.want(c.as("POST", orgTokens, samples["create-org-token"].body), http.StatusCreated)
		c.want(c.as("POST", orgTokens+"/july/rotate", `{}`), http.StatusOK)
		c.check(o, c.do(o.call(ofAcme)))
	},
	"create-org-token": func(c *contract, o operation) {
		c.check(o, c.do(o.call(ofAcme).with("Idempotency-Key", "k")))
		c.check(o, c.do(o.call(ofAcme).with("Idempotency-Key", "k")))
		c.check(o, c.do(o.call(admin)))
	},
	"rotate-org-token": func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.want(c.as("POST", orgTokens, samples["create-org-token"].body), http.StatusCreated)
		for range 5 {
			c.check(o, c.do(o.call(ofAcme)))
		}
	},
	"revoke-org-token": func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.want(c.as("POST", orgTokens, samples["create-org-token"].body), http.StatusCreated)
		c.check(o, c.do(o.call(ofAcme)))
	},
	"list-denials":     func(c *contract, o operation) { c.denied(); c.check(o, c.do(o.call(viewer))) },
	"list-org-denials": func(c *contract, o operation) { c.denied(); c.check(o, c.do(o.call(ofAcme))) },
	"get-denial": func(c *contract, o operation) {
		c.check(o, c.do(o.call(ofAcme)))
		c.identified()
		c.check(o, c.do(o.call(ofAcme)))
	},
	"list-audit": func(c *contract, o operation) {
		at, tag, _ := c.made(daily)
		c.want(c.as("DELETE", at+"?reason=over", "", "If-Match", tag), http.StatusOK)
		c.check(o, c.do(o.call(viewer)))
	},
	"get-fleet": func(c *contract, o operation) {
		c.enforces("n1", 0)
		c.check(o, c.do(o.call(viewer)))
	},
	"forget-node": func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.enforces("edge-1", 0)
		c.check(o, c.do(o.call(admin)))
		c.silences("edge-1")
		c.check(o, c.do(o.call(admin)))
	},
})

// changesOverride asks for the answers of an operation that changes the override 1.
func changesOverride(c *contract, o operation, at, create string) {
	c.check(o, c.do(o.call(admin).with("If-Match", "*")))
	c.want(c.as("POST", at, samples[create].body), http.StatusCreated)
	c.check(o, c.do(o.call(admin)))
	c.check(o, c.do(o.call(admin).with("If-Match", `"1-7"`)))
	c.check(o, c.do(o.call(admin).with("If-Match", `"1-1"`)))
	c.expireOverrides()
	c.check(o, c.do(o.call(admin).with("If-Match", "*")))
}

// changesPolicy asks for the answers of an operation that changes the policy 1.
func changesPolicy(c *contract, o operation) {
	c.check(o, c.do(o.call(admin).with("If-Match", "*")))
	c.made(daily)
	c.check(o, c.do(o.call(admin)))
	c.check(o, c.do(o.call(admin).with("If-Match", `"1-7"`)))
	c.check(o, c.do(o.call(admin).with("If-Match", `"1-1"`)))
}
