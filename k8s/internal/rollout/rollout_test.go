// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ktsn.io/ktsn/k8s/api/v1alpha1"
)

// What is seen to be gone is not waited for: a label that comes a moment after the schedule, an older schedule that is deleted.
func TestACauseThatIsGoneIsNotWaitedFor(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	made := func(name string, age time.Duration) *v1alpha1.GateSchedule {
		return &v1alpha1.GateSchedule{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(-age))},
			Spec:       v1alpha1.GateScheduleSpec{NodeSelector: map[string]string{"line": "yes"}},
		}
	}
	schedule, older := made("younger", 0), made("older", time.Hour)
	older.Status.Accepted = &v1alpha1.Rollout{Generation: 1, Nodes: []string{"a"}}
	node := func(labels map[string]string) []Node { return []Node{{Name: "a", Labels: labels, Answers: Answers{}}} }
	bare, chosen := node(nil), node(map[string]string{"line": "yes"})
	for _, c := range []struct {
		others []*v1alpha1.GateSchedule
		nodes  []Node
		phase  string
		reason string
	}{
		{nil, bare, v1alpha1.PhaseRejected, ReasonNoNode}, {nil, bare, v1alpha1.PhaseRejected, ReasonNoNode}, {nil, chosen, v1alpha1.PhaseChecking, ReasonNoNode},
		{nil, bare, v1alpha1.PhaseRejected, ReasonNoNode}, {[]*v1alpha1.GateSchedule{older}, chosen, v1alpha1.PhaseRejected, ReasonConflict},
		{[]*v1alpha1.GateSchedule{older}, chosen, v1alpha1.PhaseRejected, ReasonConflict}, {nil, bare, v1alpha1.PhaseRejected, ReasonConflict},
		{nil, chosen, v1alpha1.PhaseChecking, ReasonConflict},
	} {
		now = now.Add(time.Second)
		schedule.Status = Defaults.Next(schedule, append(c.others, schedule), c.nodes, now)
		if got := schedule.Status; got.Phase != c.phase || got.Rejected.Reason != c.reason {
			t.Errorf("%+v, expected %s, %s", got, c.phase, c.reason)
		}
	}
	// Other causes take their time.
	schedule.Status = Defaults.Next(schedule, nil, chosen, now.Add(Defaults.CheckMax+time.Second))
	if got := Defaults.Next(schedule, nil, chosen, now.Add(Defaults.CheckMax+2*time.Second)); got.Phase != v1alpha1.PhaseRejected || got.Rejected.Reason != ReasonSilent {
		t.Errorf("%+v", got)
	}
}
