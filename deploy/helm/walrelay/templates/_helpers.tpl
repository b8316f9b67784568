{{- define "walrelay.image" -}}
{{ required "image.repository: name the place where you have pushed the image" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The name of the release, as the first part of every name. */}}
{{- define "walrelay.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Labels of an object: of (root, component). */}}
{{- define "walrelay.labels" -}}
{{ include "walrelay.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "walrelay.selector" -}}
app.kubernetes.io/name: walrelay
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The environment: of (config, database). Options by their long names, the database by reference. */}}
{{- define "walrelay.env" -}}
{{- range $name, $value := .config }}
{{- if ne (toString $value) "" }}
- name: WALRELAY_{{ $name | upper | replace "-" "_" }}
  value: {{ toJson $value | trimAll "\"" | quote }}
{{- end }}
{{- end }}
- name: WALRELAY_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "database.existingSecret: name the secret with the connection string" .database.existingSecret }}
      key: {{ .database.urlKey | default "database-url" }}
- name: WALRELAY_SSLROOTCERT_PEM
  valueFrom:
    secretKeyRef:
      name: {{ .database.existingSecret }}
      key: {{ .database.sslrootcertKey | default "sslrootcert" }}
      optional: true
{{- end }}

{{- define "walrelay.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "walrelay.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* Ports and probes. Never /readyz for liveness: a standby and an outage are no reason for a kill. */}}
{{- define "walrelay.probes" -}}
ports:
  - { name: http, containerPort: 8080 }
startupProbe:
  httpGet: { path: /livez, port: http }
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet: { path: /livez, port: http }
  periodSeconds: 30
  failureThreshold: 3
readinessProbe:
  httpGet: { path: /readyz, port: http }
  periodSeconds: 5
{{- end }}

{{- define "walrelay.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A service account, a disruption budget and a headless service: of (root, component, name, annotations). */}}
{{- define "walrelay.companions" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  labels: {{- include "walrelay.labels" . | nindent 4 }}
  {{- with .annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "walrelay.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "walrelay.selector" . | nindent 6 }}
---
# For Prometheus alone. A standby is not ready, and its metrics are wanted.
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels: {{- include "walrelay.labels" . | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "walrelay.selector" . | nindent 4 }}
  ports:
    - { name: http, port: 8080, targetPort: http }
{{- if .root.Values.serviceMonitor.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ .name }}
  labels:
    {{- include "walrelay.labels" . | nindent 4 }}
    {{- with .root.Values.serviceMonitor.labels }}{{- toYaml . | nindent 4 }}{{- end }}
spec:
  # The job is the name of the service, so that each consumer has a job of its own.
  selector:
    matchLabels: {{- include "walrelay.selector" . | nindent 6 }}
  endpoints:
    - { port: http, path: /metrics, interval: {{ .root.Values.serviceMonitor.interval }} }
{{- end }}
{{- end }}
