package memory

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestSavedBucketsHaveTheFormThatOtherVersionsKnow(t *testing.T) {
	form := fmt.Sprintf("%#v", saved{State: limit.State{Log: []limit.Admission{{}}, Slots: []limit.Slot{{}}}})
	assert.Equal(t, `memory.saved{Key:policy.Key{Namespace:"", Policy:"", Group:0x0, Kind:0x0, `+
		`Slots:false, GroupID:"", Subject:"", Endpoint:""}, `+
		`State:limit.State{Algorithm:0x0, Tag:0x0, Spent:0, Previous:0, Base:0, Mark:0, At:0, `+
		`Length:0, `+
		`Log:[]limit.Admission{limit.Admission{At:0, Cost:0}}, `+
		`Slots:[]limit.Slot{limit.Slot{Deadline:0, ID:limit.SlotID{0, 0}}}}, Expiry:0, Used:0}`,
		form, "raise stateFormat (plugin/node/engine)")
}
