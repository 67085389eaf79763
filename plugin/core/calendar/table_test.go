package calendar

import (
	"bufio"
	"compress/gzip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testdata/periods.py wrote the table by another implementation, and says what a line is.
func TestEveryPeriodOfTenYearsIsTheOneOfATableByAnotherImplementation(t *testing.T) {
	file, err := os.Open("testdata/periods.txt.gz")
	require.NoError(t, err)
	defer file.Close()
	text, err := gzip.NewReader(file)
	require.NoError(t, err)
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<20)
	zones, periods := map[string]bool{}, 0
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		numbers := make([]int64, len(words))
		for i, word := range words[2:] {
			numbers[i+2], err = strconv.ParseInt(word, 10, 64)
			require.NoError(t, err)
		}
		period, err := ParsePeriod(words[1])
		require.NoError(t, err)
		month, day, weekday, hour := int(numbers[2]), int(numbers[3]), int(numbers[4]), int(numbers[5])
		c, err := New(period, Anchor{Month: month, Day: day, Weekday: weekday, Hour: hour}, words[0])
		require.NoError(t, err)
		start := numbers[6] * 1e6
		for _, step := range numbers[7:] {
			end := start + step*1e6
			for _, at := range []int64{start, start + step*5e5, end - 1} {
				if from, until := c.Window(at); from != start || until != end {
					t.Fatalf("%v %+v: %d is in [%d, %d), want [%d, %d)", c, c.Anchor(), at, from, until, start, end)
				}
			}
			start = end
			periods++
		}
		zones[words[0]] = true
	}
	require.NoError(t, lines.Err())
	if len(zones) < 20 || periods < 100_000 {
		t.Errorf("the table has %d periods of %d zones", periods, len(zones))
	}
}
