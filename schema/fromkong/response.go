package fromkong

// response converts a config of response-ratelimiting.
func (e *entry) response(s *settings) {
	s.problem("", "is not converted yet")
}
