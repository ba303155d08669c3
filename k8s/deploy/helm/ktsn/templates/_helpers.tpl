{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "ktsn.labels" -}}
app.kubernetes.io/name: ktsn
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
