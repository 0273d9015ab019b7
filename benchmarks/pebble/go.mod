module tistream/benchmarks/pebble

go 1.22

require github.com/cockroachdb/pebble v1.1.4
