// SPDX-License-Identifier: Apache-2.0

package forwardrules

import (
	"context"
	"strings"
)

// Remove takes the chain and the jumps to it away, and says whether there was something.
func (r *Rules) Remove(ctx context.Context) (removed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, t := range tools {
		if t.names != "" {
			if names, err := r.read(t.names); err != nil || !strings.Contains(string(names), "filter") {
				continue
			}
		}
		had, err := r.run(ctx, t.program, "-w", lockWait, "-S", chain)
		if err != nil || !contains(had, "-N "+chain) {
			continue // this generation has no such chain, or is not there
		}
		// As often as there is a jump.
		for {
			if _, err := r.run(ctx, t.program, "-w", lockWait, "-D", "FORWARD", "-j", chain); err != nil {
				break
			}
		}
		for _, verb := range []string{"-F", "-X"} {
			if _, err := r.run(ctx, t.program, "-w", lockWait, verb, chain); err != nil {
				return removed, err
			}
		}
		removed = true
	}
	return removed, nil
}
