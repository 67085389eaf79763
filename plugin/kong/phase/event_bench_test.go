package phase

// commonAnswers returns Kong's answers about a request of fourLimits.
func commonAnswers() map[string][]byte {
	return map[string][]byte{
		"kong.client.get_consumer": []byte("\x1a\x05alice\x0a\x24b32379d9-3d28-5683-a79c-72139be6e34f\x22\x04acme"),
		"kong.nginx.get_var":       []byte("\x0a\x1bGET /records/7?x=1 HTTP/1.1"),
		"kong.router.get_route":    []byte("\x22\x07records"),
	}
}
