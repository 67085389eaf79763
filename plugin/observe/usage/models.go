package usage

import (
	"strings"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

const (
	// MaxModels bounds the models of all tenants in a batch.
	MaxModels = 1024
	// maxModels bounds the models of all tenants between two batches. Calls of further ones are dropped and counted.
	maxModels = 16 * MaxModels
	// maxModelsOfTenant bounds the models of one tenant between two batches. Further ones count as otherModels: who may
	// name models must not fill the room of other tenants.
	maxModelsOfTenant = 256
	otherModels       = "(other)"
)

// ModelCalls counts what a tenant's calls of a model used.
type ModelCalls struct {
	Tenant           string `json:"tenant,omitzero"` // "": none
	Model            string `json:"model,omitzero"`  // that answered; "": the answer named none
	Calls            int64  `json:"calls"`
	PromptTokens     int64  `json:"prompt_tokens,omitzero"`
	CompletionTokens int64  `json:"completion_tokens,omitzero"`
	MicroUSD         int64  `json:"micro_usd,omitzero"` // the price, in millionths of a US dollar
}

func (m *ModelCalls) valid() bool {
	return min(m.Calls, m.PromptTokens, m.CompletionTokens, m.MicroUSD) >= 0 &&
		max(m.Calls, m.PromptTokens, m.CompletionTokens, m.MicroUSD) <= maxCount
}

// models counts calls of models. One lock serves all connections: calls of models are few, and take seconds.
type models struct {
	mu  sync.Mutex
	all map[modelKey]*ModelCalls // not nil
	of  map[string]int           // models of a tenant in all; not nil
}

type modelKey struct{ tenant, model string }

// count counts a call, and reports whether there was room for it.
func (m *models) count(tenant string, call *settle.Call) bool {
	k := modelKey{clean(tenant), clean(call.Model)}
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.all[k]
	if have == nil && m.of[k.tenant] >= maxModelsOfTenant {
		k.model = otherModels
		have = m.all[k]
	}
	if have == nil {
		if len(m.all) >= maxModels {
			return false
		}
		k = modelKey{strings.Clone(k.tenant), strings.Clone(k.model)}
		have = &ModelCalls{Tenant: k.tenant, Model: k.model}
		m.all[k] = have
		m.of[k.tenant]++
	}
	have.Calls++
	have.PromptTokens = sum(have.PromptTokens, call.Prompt)
	have.CompletionTokens = sum(have.CompletionTokens, call.Completion)
	have.MicroUSD = sum(have.MicroUSD, call.MicroUSD)
	return true
}

func (m *models) cut() (all []ModelCalls) {
	m.mu.Lock()
	taken := m.all
	m.all, m.of = map[modelKey]*ModelCalls{}, map[string]int{}
	m.mu.Unlock()
	for _, calls := range taken {
		all = append(all, *calls)
	}
	return all
}
