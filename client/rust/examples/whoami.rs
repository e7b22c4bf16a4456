//! Connects to a server on this machine, asks whom the token stands for, and reads one key.
//!
//!     SLATE_SERVER=127.0.0.1:7400 SLATE_TOKEN=... cargo run --example whoami BOARD KEY

use std::{env, error::Error, time::Duration};

use slateboard_client::v1::{
    GetRequest, KeyRef, WhoAmIRequest, admin_service_client::AdminServiceClient,
    entry_service_client::EntryServiceClient,
};
use tonic::{Request, Status, metadata::AsciiMetadataValue, transport::Endpoint};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = env::var("SLATE_SERVER").unwrap_or_else(|_| "127.0.0.1:7400".into());
    let bearer: AsciiMetadataValue = format!("Bearer {}", env::var("SLATE_TOKEN")?).parse()?;
    let mut arguments = env::args().skip(1);
    let (Some(board), Some(key)) = (arguments.next(), arguments.next()) else {
        return Err("usage: whoami BOARD KEY".into());
    };

    // Plain text, for loopback only; `https://` and tonic's TLS features beyond it.
    let channel = Endpoint::from_shared(format!("http://{server}"))?
        .timeout(Duration::from_secs(10))
        .http2_keep_alive_interval(Duration::from_secs(30))
        .keep_alive_while_idle(true)
        .connect()
        .await?;
    let authorize = move |mut request: Request<()>| -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", bearer.clone());
        Ok(request)
    };

    let mut admin = AdminServiceClient::with_interceptor(channel.clone(), authorize.clone());
    let me = admin.who_am_i(WhoAmIRequest {}).await?.into_inner();
    println!("principal: {}", me.principal.unwrap_or_default().id);

    let mut entries = EntryServiceClient::with_interceptor(channel, authorize);
    let keys = vec![KeyRef { key, ..Default::default() }];
    let found = entries.get(GetRequest { board, keys, ..Default::default() }).await?;
    for entry in found.into_inner().entries {
        let value = entry.content.unwrap_or_default().value;
        println!("{} version {}: {}", entry.key, entry.version, String::from_utf8_lossy(&value));
    }
    Ok(())
}
