"""TiDB rows to columns and back to text.

`decode` turns record keys and values into Arrow columns in *storage form*, the smallest exact form of each type:

    TINYINT SMALLINT MEDIUMINT INT BIGINT   int8 int16 int32 int32 int64, unsigned: uint8 uint16 uint32 uint32 uint64
    YEAR                                    uint16
    FLOAT DOUBLE                            float32 float64
    DECIMAL(p, s)                           decimal128(p, s) up to 38 digits, else decimal256(p, s)
    CHAR VARCHAR TEXT                       string (bytes that are not UTF-8 become U+FFFD)
    BINARY VARBINARY BLOB                   binary
    DATE DATETIME TIMESTAMP                 uint64, TiDB's packed time (holds zero and invalid dates; TIMESTAMP in UTC)
    TIME                                    int64 nanoseconds
    BIT ENUM SET                            uint64 (value, 1-based index with 0 = the error value, bitmask)
    JSON                                    string, the text TiDB prints
    VECTOR                                  list<float32>

`text` renders a storage column as MySQL prints it; `native` turns it into the Arrow type that people expect
(date32, timestamp[us], duration[us], dictionary for ENUM, ...).
"""
