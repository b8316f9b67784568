# Used by the release workflow with the folder target/image, which `scripts/release.sh image-context` makes.
# Checked with hadolint. It was never built: no container engine was at hand.
#
# The same image as that of the Dockerfile in the root, from binaries that are built already.
FROM scratch
ARG TARGETARCH
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY linux-${TARGETARCH}/walrelay /walrelay
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/walrelay"]
CMD ["run"]
