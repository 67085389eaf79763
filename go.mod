module github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting

go 1.26.0

require (
	github.com/Kong/go-pdk v0.11.2
	github.com/golang-jwt/jwt/v5 v5.3.1
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.24.0
	google.golang.org/protobuf v1.36.12
	gopkg.in/yaml.v3 v3.0.1
	pgregory.net/rapid v1.3.0
)

require (
	github.com/kr/text v0.2.0 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/ugorji/go/codec v1.2.14 // indirect
)
