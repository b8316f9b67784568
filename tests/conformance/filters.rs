//! Filters. The official emulator accepts and ignores every filter, so only the embedded emulator
//! is tested. The filter language follows the documentation.

use tonic::Code;

use crate::service::{Kind, attributed, data, services};

#[tokio::test]
async fn a_filter_decides_what_a_subscription_delivers() {
    for mut service in services().await {
        let filter = "attributes:event_type AND NOT hasPrefix(attributes.event_type, \"Cart\")";
        service
            .subscribe_with("orders", "some", |its| its.filter = filter.to_owned())
            .await
            .unwrap();
        for (data, event_type) in [("1", "OrderPaid"), ("2", "CartFilled"), ("3", "OrderShipped")] {
            let message = attributed("k", data, "event_type", event_type);
            service.publish("orders", vec![message]).await.unwrap();
        }
        let expected: &[&str] = match service.kind {
            Kind::Embedded => &["1", "3"],
            Kind::Official => &["1", "2", "3"],
        };
        let received = service.pull("some", expected.len()).await;
        assert_eq!(data(&received), expected, "{:?}", service.kind);
        // Messages that the filter excludes count as acknowledged, so no message waits behind them.
        service.acknowledge("some", &received).await;
        let next = attributed("k", "4", "event_type", "OrderPaid");
        service.publish("orders", vec![next]).await.unwrap();
        assert_eq!(data(&service.pull("some", 1).await), ["4"], "{:?}", service.kind);
        assert_eq!(data(&service.pull("all", 4).await), ["1", "2", "3", "4"]);
    }
}

#[tokio::test]
async fn a_malformed_filter_is_refused() {
    for mut service in services().await {
        let filters = ["event_type = \"a\"", "attributes:a AND attributes:b OR attributes:c"];
        let kind = service.kind;
        for (name, filter) in ["bad-1", "bad-2"].into_iter().zip(filters) {
            let made = service.subscribe_with("orders", name, |its| its.filter = filter.to_owned());
            let made = made.await.map_err(|status| status.code());
            let expected = match kind {
                Kind::Embedded => Err(Code::InvalidArgument),
                Kind::Official => Ok(()),
            };
            assert_eq!(made, expected, "{filter}");
        }
    }
}

#[tokio::test]
async fn a_filter_cannot_be_changed() {
    for mut service in services().await {
        let changed =
            service.update("all", &["filter"], |its| its.filter = "attributes:a".to_owned());
        let code = changed.await.unwrap_err().code();
        assert_eq!(code, Code::InvalidArgument, "{:?}", service.kind);
    }
}
