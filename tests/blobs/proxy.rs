//! Stands between a client and an S3 server, and does to requests what networks and stores do: answers of its own, slow bodies, cut
//! connections, and a store that overwrites without a word. One request a connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this status and code, and the server does not hear of it.
    Answer(u16, &'static str),
    /// The server does it, and the answer is lost.
    LoseAnswer,
    /// The answer's body comes a byte at a time.
    Trickle,
    /// The connection is closed in the middle of the answer's body.
    Cut,
    /// A condition that failed is said to have held.
    Overwrite,
    /// The answer's last byte is another.
    Spoil,
    /// The answer comes so much later.
    Late(Duration),
}

type Rule = Box<dyn FnMut(&str) -> Option<Fault> + Send>;

pub struct Proxy {
    pub address: String,
    rule: Arc<Mutex<Rule>>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub async fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_| None)));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (to, rules, heard) = (server.to_owned(), Arc::clone(&rule), Arc::clone(&seen));
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (to, rules, heard) = (to.clone(), Arc::clone(&rules), Arc::clone(&heard));
                tokio::spawn(async move { exchange(client, &to, &rules, &heard).await });
            }
        });
        Self { address, rule, seen }
    }

    /// From now on, by the first line of the request ("PUT /bucket/key HTTP/1.1").
    pub fn rule(&self, rule: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    pub fn as_it_is(&self) {
        self.rule(|_| None);
    }

    /// The first lines of the requests so far that contain this.
    pub fn seen(&self, part: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|line| line.contains(part)).count()
    }
}

async fn exchange(
    mut client: TcpStream,
    server: &str,
    rules: &Mutex<Rule>,
    seen: &Mutex<Vec<String>>,
) -> Option<()> {
    let (head, mut body) = head_of(&mut client).await?;
    let line = head.lines().next()?.to_owned();
    let expected = length(&head);
    while body.len() < expected {
        if client.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    seen.lock().unwrap().push(line.clone());
    let fault = (rules.lock().unwrap())(&line);
    if let Some(Fault::Answer(status, code)) = &fault {
        let text =
            format!("<Error><Code>{code}</Code><Message>as the test wants</Message></Error>");
        let length = text.len();
        let answer = format!(
            "HTTP/1.1 {status} Fault\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
        );
        client.write_all(answer.as_bytes()).await.ok()?;
        return Some(());
    }
    let mut upstream = TcpStream::connect(server).await.ok()?;
    let closing = head.replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1);
    upstream.write_all(closing.as_bytes()).await.ok()?;
    upstream.write_all(&body).await.ok()?;
    let (mut head, mut body) = head_of(&mut upstream).await?;
    upstream.read_to_end(&mut body).await.ok()?;
    match fault {
        Some(Fault::LoseAnswer) => return Some(()),
        Some(Fault::Overwrite) if head.starts_with("HTTP/1.1 412") => {
            head = "HTTP/1.1 200 OK\r\netag: \"new\"\r\ncontent-length: 0\r\n\r\n".to_owned();
            body.clear();
        }
        Some(Fault::Spoil) => *body.last_mut()? ^= 1,
        Some(Fault::Late(by)) => tokio::time::sleep(by).await,
        _ => {}
    }
    let head = head.replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1);
    client.write_all(head.as_bytes()).await.ok()?;
    match fault {
        Some(Fault::Trickle) => {
            for byte in body {
                client.write_all(&[byte]).await.ok()?;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Some(Fault::Cut) => client.write_all(&body[..body.len() / 2]).await.ok()?,
        _ => client.write_all(&body).await.ok()?,
    }
    Some(())
}

/// The head of a message, and what came of its body with it.
async fn head_of(from: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = read.split_off(end + 4);
            return Some((String::from_utf8(read).ok()?, body));
        }
        if from.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

fn length(head: &str) -> usize {
    let named = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    named.unwrap_or(0)
}
