// Writes change rows into Pebble with the options of TiCDC's event store, flushes, and scans them in order.
//
//	pebble-peer ROWS DIR
//
// ROWS is a file of records, little endian: u32 key length, u32 value length, u32 old value length (0xffffffff: none),
// i64 table, u64 start_ts, u64 commit_ts, u8 op, key, value, old value. DIR is an empty folder.
// Prints one line of JSON: rows, processor seconds of the whole process (user and system, all threads) for writing with
// flush and for the scan that decodes every row, whether the scan met all rows in order, and bytes compacted for each
// byte flushed.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble"
	"github.com/cockroachdb/pebble/bloom"
)

const batchBytes = 1 << 20
const absent = math.MaxUint32

type row struct {
	table, startTs, commitTs uint64
	op                       byte
	key, value, old          []byte
}

func options() *pebble.Options {
	o := &pebble.Options{
		DisableWAL:                  true,
		MaxOpenFiles:                10000,
		MaxConcurrentCompactions:    func() int { return 6 },
		L0CompactionThreshold:       20,
		L0CompactionFileThreshold:   20,
		L0StopWritesThreshold:       math.MaxInt32,
		MemTableSize:                256 << 20,
		MemTableStopWritesThreshold: 4,
		Cache:                       pebble.NewCache(2 << 30),
		Levels:                      make([]pebble.LevelOptions, 7),
		Logger:                      quiet{},
	}
	for i := range o.Levels {
		l := &o.Levels[i]
		l.BlockSize, l.IndexBlockSize, l.TargetFileSize = 32<<10, 256<<10, 32<<20
		l.FilterPolicy, l.FilterType = bloom.FilterPolicy(10), pebble.TableFilter
		l.Compression = pebble.SnappyCompression
	}
	o.Levels[6].FilterPolicy = nil
	o.FlushSplitBytes = o.Levels[0].TargetFileSize
	return o.EnsureDefaults()
}

type quiet struct{}

func (quiet) Infof(string, ...interface{})      {}
func (quiet) Errorf(f string, a ...interface{}) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (quiet) Fatalf(f string, a ...interface{}) { panic(fmt.Sprintf(f, a...)) }

func processorSeconds() float64 {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// next gives the record at an offset of ROWS, and the offset behind it. Nothing is copied.
func next(data []byte, at int) (r row, end int) {
	le := binary.LittleEndian
	k, v, o := int(le.Uint32(data[at:])), le.Uint32(data[at+4:]), le.Uint32(data[at+8:])
	r = row{table: le.Uint64(data[at+12:]), startTs: le.Uint64(data[at+20:]), commitTs: le.Uint64(data[at+28:]), op: data[at+36]}
	at += 37
	r.key, at = data[at:at+k], at+k
	if v != absent {
		r.value, at = data[at:at+int(v)], at+int(v)
	}
	if o != absent {
		r.old, at = data[at:at+int(o)], at+int(o)
	}
	return r, at
}

func (r *row) size() int { return len(r.key) + len(r.value) + len(r.old) }

func sortKey(buf []byte, r *row) []byte {
	be := binary.BigEndian
	buf = be.AppendUint64(buf[:0], 1) // a subscription
	buf = be.AppendUint64(buf, r.table)
	buf = be.AppendUint64(buf, r.commitTs)
	buf = be.AppendUint64(buf, r.startTs)
	buf = append(buf, r.op)
	return append(buf, r.key...)
}

func encode(buf []byte, r *row) []byte {
	le := binary.LittleEndian
	buf = append(buf[:0], r.op)
	buf = le.AppendUint64(buf, r.commitTs)
	buf = le.AppendUint64(buf, r.startTs)
	buf = le.AppendUint32(buf, uint32(len(r.key)))
	buf = le.AppendUint32(buf, uint32(len(r.value)))
	buf = le.AppendUint32(buf, uint32(len(r.old)))
	buf = append(buf, r.key...)
	buf = append(buf, r.value...)
	return append(buf, r.old...)
}

func decode(b []byte) (r row) {
	le := binary.LittleEndian
	r.op, r.commitTs, r.startTs = b[0], le.Uint64(b[1:]), le.Uint64(b[9:])
	k, v, o := int(le.Uint32(b[17:])), int(le.Uint32(b[21:])), int(le.Uint32(b[25:]))
	b = append([]byte(nil), b[29:]...) // a row outlives the iterator's step
	r.key, r.value, r.old = b[:k], b[k:k+v], b[k+v:k+v+o]
	return r
}

func main() {
	data, err := os.ReadFile(os.Args[1])
	check(err)
	db, err := pebble.Open(os.Args[2], options())
	check(err)
	began, wall := processorSeconds(), time.Now()
	var kb, vb []byte
	var r row
	rows, bytesIn := 0, 0
	batch := db.NewBatch()
	for at := 0; at < len(data); rows++ {
		r, at = next(data, at)
		bytesIn += r.size()
		kb, vb = sortKey(kb, &r), encode(vb, &r)
		check(batch.Set(kb, vb, pebble.NoSync))
		if batch.Len() >= batchBytes {
			check(batch.Commit(pebble.NoSync))
			batch = db.NewBatch()
		}
	}
	check(batch.Commit(pebble.NoSync))
	check(db.Flush())
	written, writtenWall := processorSeconds(), time.Now()
	it, err := db.NewIter(nil)
	check(err)
	count, size := 0, 0
	inOrder := true
	var last []byte
	for it.First(); it.Valid(); it.Next() {
		r := decode(it.Value())
		inOrder = inOrder && bytes.Compare(last, it.Key()) < 0
		last = append(last[:0], it.Key()...)
		count++
		size += r.size()
	}
	check(it.Close())
	scanned := processorSeconds()
	var flushed, compacted uint64
	for _, level := range db.Metrics().Levels {
		flushed, compacted = flushed+level.BytesFlushed, compacted+level.BytesCompacted
	}
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"rows": count, "bytes": size, "whole": count == rows && size == bytesIn && inOrder,
		"compacted": float64(compacted) / float64(flushed),
		"write_s":   written - began, "scan_s": scanned - written,
		"write_wall_s": writtenWall.Sub(wall).Seconds(), "scan_wall_s": time.Since(writtenWall).Seconds(),
	}))
	check(db.Close())
}
