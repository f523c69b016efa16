//! What happened to a stream, for those who watch it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::course::Notice;
use crate::api::Event;

/// How many events are remembered.
const REMEMBERED: usize = 10_000;

/// The newest events of a stream.
#[derive(Default)]
pub struct Events {
    ring: Mutex<Ring>,
    more: Condvar,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    last: u64,
    closed: bool,
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what happened, with the time in milliseconds since 1970.
    pub fn add(&self, notices: &[Notice], now: u64) {
        if notices.is_empty() {
            return;
        }
        let mut ring = self.lock();
        for notice in notices {
            let mut data = notice.data.clone();
            if let Value::Object(fields) = &mut data {
                fields.insert("time".to_owned(), now.into());
            }
            ring.last += 1;
            let event = Event {
                id: ring.last,
                kind: notice.kind,
                data: data.to_string(),
            };
            ring.events.push_back(Arc::new(event));
        }
        let surplus = ring.events.len().saturating_sub(REMEMBERED);
        ring.events.drain(..surplus);
        drop(ring);
        self.more.notify_all();
    }

    /// Returns the events after an id; waits for the first as long as `wait`. Without an id all that are remembered are returned.
    pub fn after(&self, id: Option<u64>, wait: Duration) -> Vec<Arc<Event>> {
        let until = Instant::now() + wait;
        let id = id.unwrap_or(0);
        let mut ring = self.lock();
        while ring.last <= id && !ring.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.more.wait_timeout(ring, left);
            ring = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let new = ring.events.iter().filter(|event| event.id > id);
        new.cloned().collect()
    }

    /// Lets nobody wait any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn those_who_come_back_get_what_they_missed() {
        let events = Events::default();
        let notice = |number: u64| Notice {
            kind: "step",
            data: json!({"seq": number}),
        };
        events.add(&[notice(1), notice(2), notice(3)], 7);
        let all = events.after(None, Duration::ZERO);
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].data, r#"{"seq":1,"time":7}"#);
        let ids = |found: Vec<Arc<Event>>| found.iter().map(|event| event.id).collect::<Vec<_>>();
        assert_eq!(ids(events.after(Some(2), Duration::ZERO)), [3]);
        assert_eq!(ids(events.after(Some(3), Duration::from_millis(1))), [0; 0]);
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| events.after(Some(3), Duration::from_mins(1)));
            events.add(&[notice(4)], 8);
            waiting.join().unwrap()
        });
        assert_eq!(ids(waiting), [4]);
        for number in 0..REMEMBERED as u64 {
            events.add(&[notice(number)], 9);
        }
        assert_eq!(events.after(None, Duration::ZERO).len(), REMEMBERED);
        events.close();
        assert_eq!(
            ids(events.after(Some(99_999), Duration::from_mins(1))),
            [0; 0]
        );
    }
}
