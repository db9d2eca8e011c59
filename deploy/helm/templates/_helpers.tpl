{{/* The name of all objects begins with the release's. */}}
{{- define "gateway.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "gateway.secret" -}}
{{- .Values.existingSecret | default .Values.secretName | default (include "gateway.name" .) -}}
{{- end -}}

{{- define "gateway.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "gateway.name" .) "") -}}
{{- end -}}

{{/* Call with (list $ NAME): labels that select the pods of one set. */}}
{{- define "gateway.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end -}}

{{/* Call with (list $ NAME): labels of an object. */}}
{{- define "gateway.labels" -}}
{{- $root := index . 0 -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/part-of: completions-gateway
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{/* The configuration: files/gateway.yaml with the sections of .Values.config. As YAML; read it with fromYaml. */}}
{{- define "gateway.config" -}}
{{- $config := .Files.Get "files/gateway.yaml" | fromYaml -}}
{{- if .Values.redis.enabled -}}
{{- $url := $config.store.url | replace "@redis:" (printf "@%s-redis:" (include "gateway.name" .)) -}}
{{- $_ := set $config.store "url" $url -}}
{{- else if not (dig "store" "url" "" .Values.config) -}}
{{- fail "config.store.url is not set: with redis.enabled=false, name your own Redis there" -}}
{{- end -}}
{{- range $section, $given := .Values.config -}}
{{- if has $section (list "server" "store" "admin" "metrics") -}}
{{- $_ := set $config $section (mergeOverwrite (get $config $section) (deepCopy $given)) -}}
{{- else -}}
{{- $_ := set $config $section $given -}}
{{- end -}}
{{- end -}}
{{- if and (hasPrefix "embedded:" $config.store.url) (or .Values.autoscaling.enabled (gt (int .Values.replicas) 1)) -}}
{{- fail "config.store.url is an embedded store, which several pods cannot share: set replicas to 1 and autoscaling.enabled to false, or use Redis" -}}
{{- end -}}
{{- if not (regexMatch ":[1-9][0-9]*$" ($config.admin.listen | default "")) -}}
{{- fail "config.admin.listen must be host:port: without it the admin API would be served to clients" -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The settings that need a restart; a change of them changes the pods' annotation. */}}
{{- define "gateway.restart" -}}
{{- $config := include "gateway.config" . | fromYaml -}}
{{- $server := pick $config.server "host" "port" "workers" -}}
{{- dict "server" $server "store" $config.store "listen" $config.admin.listen "tracing" $config.tracing | toYaml | sha256sum -}}
{{- end -}}

{{/* Call with (dict "size" ... "storageClassName" ...): the spec of a volume claim. */}}
{{- define "gateway.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests: {storage: {{ .size }}}
{{- end -}}

{{/* Call with (list $ STATEFULSET VALUE): fails if the StatefulSet runs with other volumes than this value describes.
     Kubernetes would refuse it after Helm has changed other objects, and leave a release that neither upgrades nor rolls back. */}}
{{- define "gateway.keepsVolumes" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 2) -}}
{{- $running := lookup "apps/v1" "StatefulSet" $root.Release.Namespace (index . 1) -}}
{{- if $running -}}
{{- $is := "an emptyDir" -}}
{{- range dig "spec" "volumeClaimTemplates" (list) $running -}}
{{- $is = printf "%s of storage class %s" .spec.resources.requests.storage (.spec.storageClassName | default "(default)") -}}
{{- end -}}
{{- $given := "an emptyDir" -}}
{{- if not $values.emptyDir -}}
{{- $given = printf "%s of storage class %s" $values.size ($values.storageClassName | default "(default)") -}}
{{- end -}}
{{- if ne $is $given -}}
{{- fail (printf "%s asks for %s, but StatefulSet %s runs with %s, and Kubernetes does not change that. Keep the value, or run `kubectl delete statefulset %s --namespace %s --cascade=orphan` before the upgrade: its pods and volumes stay, and the new StatefulSet takes the pods over" (index . 2) $given (index . 1) $is (index . 1) $root.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Call with (list $ PATHS): these paths and the prefixes of config.passthrough, as a JSON array. */}}
{{- define "gateway.paths" -}}
{{- $paths := index . 1 -}}
{{- range (include "gateway.config" (index . 0) | fromYaml).passthrough -}}
{{- with .prefix -}}
{{- $paths = append $paths . -}}
{{- end -}}
{{- end -}}
{{- $paths | uniq | toJson -}}
{{- end -}}

{{/* Call with (list $ NAME VALUES RULES): an Ingress. RULES are (list PATH TYPE SERVICE PORT). */}}
{{- define "gateway.ingress" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
{{- $rules := index . 3 -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ index . 1 }}
  labels: {{- include "gateway.labels" (list $root "gateway") | nindent 4 }}
  {{- with $values.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with $values.className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with $values.tlsSecretName }}
  tls:
    - secretName: {{ . }}
      hosts: {{- toYaml $values.hosts | nindent 8 }}
  {{- end }}
  rules:
    {{- range $values.hosts }}
    - host: {{ . | quote }}
      http:
        paths:
          {{- range $rules }}
          - path: {{ index . 0 }}
            pathType: {{ index . 1 }}
            backend: {service: {name: {{ index . 2 }}, port: {name: {{ index . 3 }}}}}
          {{- end }}
    {{- end }}
{{- end -}}

{{/* Call with (list $ VALUE NAME RULES): the HTTPRoute of this value. RULES are (list MATCHES SERVICE PORT), and MATCHES
     (list TYPE PATH). */}}
{{- define "gateway.httpRoute" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
{{- if not $values.parentRefs -}}
{{- fail (printf "%s.parentRefs is empty: name the Gateway that publishes this route" (index . 1)) -}}
{{- end -}}
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: {{ index . 2 }}
  labels: {{- include "gateway.labels" (list $root "gateway") | nindent 4 }}
  {{- with $values.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  parentRefs: {{- toYaml $values.parentRefs | nindent 4 }}
  {{- with $values.hostnames }}
  hostnames: {{- toYaml . | nindent 4 }}
  {{- end }}
  rules:
    {{- range index . 3 }}
    - matches:
        {{- range index . 0 }}
        - path: {type: {{ index . 0 }}, value: {{ index . 1 }}}
        {{- end }}
      timeouts: {request: {{ $values.timeout }}}
      backendRefs:
        - {name: {{ index . 1 }}, port: {{ index . 2 }}}
    {{- end }}
{{- end -}}

{{/* The gateway's image; a digest comes before the tag. */}}
{{- define "gateway.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}
