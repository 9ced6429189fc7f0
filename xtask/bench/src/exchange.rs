//! An HTTP/1.1 request on a stream, and its whole response. A load with a schedule shares its CPU with the pod, so the
//! exchange does as little as possible. It neither opens nor closes the stream.

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use ingress_lab::head;

/// Sends `request`, reads the response into `answer`, which is cleared first, and returns the status.
///
/// # Errors
/// Fails if the stream breaks or ends, or the response has no length. If no byte of a response arrived, `answer` is
/// empty.
pub(super) async fn exchange<S>(stream: &mut S, request: &[u8], answer: &mut Vec<u8>) -> anyhow::Result<u16>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    answer.clear();
    stream.write_all(request).await.context("cannot send a request")?;
    stream.flush().await.context("cannot send a request")?;
    loop {
        let count = stream.read_buf(answer).await.context("cannot read an answer")?;
        ensure!(count > 0, "closed before the end of an answer");
        if let Some((status, length)) = head::parse(answer)?
            && answer.len() >= length
        {
            return Ok(status);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_lab::client::block_on;

    #[test]
    fn a_response_is_read_exactly_to_its_end() {
        for (parts, expect) in [
            (&["HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"][..], Some(200)),
            (&["HTTP/1.1 200 OK\r\nContent-Le", "ngth: 3\r\n\r", "\nab", "c"][..], Some(200)),
            (&["HTTP/1.1 301 Moved Permanently\r\nContent-Length: 0\r\n\r\n"][..], Some(301)),
            (&["HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"][..], None),
            (&["HTTP/1.1 200 OK\r\n\r\nabc"][..], None),
            (&["SSH-2.0-x\r\n"][..], None),
            (&[""][..], None),
        ] {
            let (mut near, mut far) = tokio::io::duplex(1024);
            let status = block_on(async {
                let answering = async {
                    let mut request = [0; 3];
                    far.read_exact(&mut request).await?;
                    for part in parts {
                        far.write_all(part.as_bytes()).await?;
                        tokio::task::yield_now().await;
                    }
                    drop(far);
                    anyhow::Ok(request)
                };
                let mut answer = b"of the last".to_vec();
                let (status, request) = tokio::join!(exchange(&mut near, b"ask", &mut answer), answering);
                assert_eq!(&request?, b"ask");
                if expect.is_some() {
                    assert_eq!(answer, parts.concat().as_bytes());
                } else if parts.concat().is_empty() {
                    assert!(answer.is_empty());
                }
                Ok(status.ok())
            });
            assert_eq!(status.expect("the other side"), expect, "{parts:?}");
        }
    }
}
