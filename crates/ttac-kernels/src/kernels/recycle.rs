//! A free list of large buffers, so that one training step reuses the memory of the step before.
//!
//! A training step allocates and frees the same few dozen lengths again and again. Above some megabytes the C library returns every such
//! buffer to the system and gets zeroed pages for the next one; that costs more than the arithmetic of a batch norm. So results and scratch
//! buffers come from [`take`], and whoever drops a big buffer may hand it to [`give`].

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers below this many floats are left to the allocator, which is good at them.
const SMALLEST: usize = 16 * 1024;
/// The list holds at most this many floats (2 GiB); the oldest buffers are freed first.
const MOST: usize = 512 * 1024 * 1024;
/// And at most this many buffers, which bounds the search.
const MOST_BUFFERS: usize = 1024;

/// Tells the C library, where it is glibc, to keep freed memory for this process instead of returning large buffers to the system one by one. For
/// programs: matrices that other crates allocate anew in every step (those of covariances) then cost no page faults, which is a third of their
/// time. Affects the whole process, so a library should leave it to whoever runs it.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // From <malloc.h>.
        const M_TRIM_THRESHOLD: i32 = -1;
        const M_MMAP_MAX: i32 = -4;
        unsafe extern "C" {
            fn mallopt(parameter: i32, value: i32) -> i32;
        }
        // SAFETY: glibc's function of that signature, which may be called at any time from any thread; a value it does not like changes nothing.
        unsafe {
            mallopt(M_MMAP_MAX, 0);
            mallopt(M_TRIM_THRESHOLD, i32::MAX);
        }
    }
}

struct FreeList {
    /// Oldest first.
    buffers: VecDeque<Vec<f32>>,
    floats: usize,
}

static FREE: Mutex<FreeList> = Mutex::new(FreeList {
    buffers: VecDeque::new(),
    floats: 0,
});

fn free_list() -> MutexGuard<'static, FreeList> {
    // Every critical section below leaves the list consistent, so a poisoned lock still guards a good list.
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An empty vector with a capacity of at least `len`: a recycled one if there is one of fitting length, else a new one.
pub fn take(len: usize) -> Vec<f32> {
    if len >= SMALLEST {
        let mut free = free_list();
        // The newest that wastes at most an eighth: it is the likeliest to be in the cache. Else the tightest that is at most twice as large, which is better
        // than new memory.
        let newest = free
            .buffers
            .iter()
            .rposition(|b| (len..=len + len / 8).contains(&b.capacity()));
        let tightest = || {
            let all = free.buffers.iter().map(Vec::capacity).enumerate();
            all.filter(|(_, capacity)| (len..=2 * len).contains(capacity))
                .min_by_key(|(_, capacity)| *capacity)
                .map(|(i, _)| i)
        };
        if let Some(i) = newest.or_else(tightest) {
            let buffer = free.buffers.remove(i).expect("it was found there");
            free.floats -= buffer.capacity();
            return buffer;
        }
    }
    // A result's buffer should do for a scratch buffer of the same length.
    Vec::with_capacity(len + LINE)
}

/// Hands a buffer back for a later [`take`]. Its contents are forgotten.
pub fn give(mut buffer: Vec<f32>) {
    let capacity = buffer.capacity();
    if !(SMALLEST..=MOST).contains(&capacity) {
        return;
    }
    buffer.clear();
    let mut evicted = Vec::new(); // freed after the lock is released
    let mut free = free_list();
    free.floats += capacity;
    free.buffers.push_back(buffer);
    while free.floats > MOST || free.buffers.len() > MOST_BUFFERS {
        let oldest = free
            .buffers
            .pop_front()
            .expect("the list holds at least the buffer just given");
        free.floats -= oldest.capacity();
        evicted.push(oldest);
    }
    drop(free);
}

/// Frees every buffer in the list.
pub fn clear() {
    let mut free = free_list();
    free.floats = 0;
    let buffers = std::mem::take(&mut free.buffers);
    drop(free); // the lock is not held while the memory is returned
    drop(buffers);
}

/// A working buffer on a cache line's boundary, which goes back to the list when dropped. Its contents are whatever was there: write before you read.
pub(crate) struct Scratch {
    buffer: Vec<f32>,
    /// Floats from the buffer's start to the boundary.
    start: usize,
}

/// A cache line, in floats. A vector of this length that straddles two lines takes twice as long to load.
const LINE: usize = 16;

impl Scratch {
    /// Room for `len` floats.
    pub(crate) fn new(len: usize) -> Self {
        let buffer = take(len + LINE);
        let start = buffer.as_ptr().align_offset(LINE * size_of::<f32>());
        Self { buffer, start }
    }

    pub(crate) fn as_ptr(&self) -> *const f32 {
        self.buffer.as_ptr().wrapping_add(self.start)
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.buffer.as_mut_ptr().wrapping_add(self.start)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_buffer_is_taken_again() {
        let len = SMALLEST + 12_345; // a length nobody else asks for
        let mut buffer = take(len);
        buffer.push(1.);
        let address = buffer.as_ptr();
        give(buffer);
        let again = take(len);
        assert_eq!(again.as_ptr(), address);
        assert!(again.is_empty() && again.capacity() >= len);
        let other = take(len);
        assert_ne!(
            other.as_ptr(),
            address,
            "one buffer is never handed out twice"
        );
    }

    #[test]
    fn a_buffer_twice_as_large_is_better_than_none_and_a_close_one_better_than_that() {
        let len = 64 * SMALLEST + 54_321; // lengths nobody else asks for
        let addresses = [len + len / 4, 2 * len, len + len / 16].map(|capacity| {
            let buffer = Vec::with_capacity(capacity);
            let address = Vec::as_ptr(&buffer);
            give(buffer);
            address
        });
        // All are held, so that none is freed and its address given out again.
        let taken = [0; 4].map(|_| take(len));
        let found = taken.each_ref().map(Vec::as_ptr);
        assert_eq!(found[..3], [addresses[2], addresses[0], addresses[1]]);
        assert!(!addresses.contains(&found[3]));
    }

    #[test]
    fn small_buffers_are_left_to_the_allocator() {
        let buffer = Vec::with_capacity(SMALLEST / 2);
        give(buffer);
        assert!(free_list().buffers.iter().all(|b| b.capacity() >= SMALLEST));
    }
}
