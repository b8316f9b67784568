# docker build --tag walrelay .
#
# One static program in an empty image: no shell, no package manager, not root. glibc's resolver is part of
# a static program since 2.34; musl's allocator would cost throughput.
FROM rust:1.95.0-bookworm AS build
WORKDIR /src
COPY . .
# With --target, build scripts and macros of the build itself are not linked statically, which they cannot be.
# Random bytes come from the system call: by default it is looked for at run time, which a static program
# cannot do, and then they are read from /dev/urandom.
# The shell is dash, which knows no pipefail; an empty target fails in cargo.
# hadolint ignore=DL4006
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    target="$(rustc -vV | sed -n 's/^host: //p')" && \
    RUSTFLAGS="-C target-feature=+crt-static -C strip=symbols --cfg getrandom_backend=\"linux_getrandom\"" \
    cargo build --locked --profile dist --package walrelay --bin walrelay --target "$target" && \
    install -D "target/$target/dist/walrelay" /image/walrelay && \
    install -D /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt

FROM scratch
# The authorities that Google's endpoints are checked against; Postgres' own come with sslrootcert.
COPY --from=build /image /
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/walrelay"]
CMD ["run"]
