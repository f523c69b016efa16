//! A free list of large buffers, so that one training step reuses the memory of the step before.
//!
//! A training step allocates and frees the same few dozen lengths again and again. Above some megabytes the C library returns every such
//! buffer to the system and gets zeroed pages for the next one; that costs more than the arithmetic of a batch norm. So results and scratch
//! buffers come from the [`FreeList`] of a context, and whoever drops a big buffer may hand it back.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shape::elements;
use crate::Context;

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

#[derive(Default)]
struct Buffers {
    /// The oldest buffer comes first.
    buffers: VecDeque<Vec<f32>>,
    floats: usize,
}

/// Buffers that wait to be used again. One list can serve many threads.
#[derive(Default)]
pub(crate) struct FreeList(Mutex<Buffers>);

impl fmt::Debug for FreeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.lock();
        f.debug_struct("FreeList")
            .field("buffers", &free.buffers.len())
            .field("floats", &free.floats)
            .finish()
    }
}

impl FreeList {
    fn lock(&self) -> MutexGuard<'_, Buffers> {
        // Every critical section below leaves the list consistent, so a poisoned lock still guards a good list.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an empty vector with a capacity of at least `len`: a recycled one if there is one of fitting length, else a new one.
    pub(crate) fn take(&self, len: usize) -> Vec<f32> {
        if len >= SMALLEST {
            let mut free = self.lock();
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

    /// Keeps a buffer for a later [`take`](Self::take) and forgets its contents.
    pub(crate) fn give(&self, mut buffer: Vec<f32>) {
        let capacity = buffer.capacity();
        if !(SMALLEST..=MOST).contains(&capacity) {
            return;
        }
        buffer.clear();
        let mut evicted = Vec::new(); // freed after the lock is released
        let mut free = self.lock();
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
    pub(crate) fn clear(&self) {
        let buffers = std::mem::take(&mut *self.lock());
        drop(buffers); // the lock is not held while the memory is returned
    }
}

/// A working buffer on a cache line's boundary, which goes back to its context's list when dropped. Its contents are whatever was there: write before you
/// read.
pub(crate) struct Scratch<'a> {
    buffer: Vec<f32>,
    /// Floats from the buffer's start to the boundary.
    start: usize,
    context: &'a Context,
}

/// A cache line, in floats. A vector of this length that straddles two lines takes twice as long to load.
const LINE: usize = 16;

impl<'a> Scratch<'a> {
    /// Makes room for a tensor of some shape.
    ///
    /// # Panics
    /// If no slice could hold it.
    pub(crate) fn new(context: &'a Context, shape: &[usize]) -> Self {
        let len = elements("scratch buffer", shape);
        let buffer = context.take(len + LINE);
        let start = buffer.as_ptr().align_offset(LINE * size_of::<f32>());
        Self {
            buffer,
            start,
            context,
        }
    }

    pub(crate) fn as_ptr(&self) -> *const f32 {
        self.buffer.as_ptr().wrapping_add(self.start)
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.buffer.as_mut_ptr().wrapping_add(self.start)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        self.context.recycle(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_buffer_is_taken_again() {
        let list = FreeList::default();
        let len = SMALLEST + 12_345;
        let mut buffer = list.take(len);
        buffer.push(1.);
        let address = buffer.as_ptr();
        list.give(buffer);
        let again = list.take(len);
        assert_eq!(again.as_ptr(), address);
        assert!(again.is_empty() && again.capacity() >= len);
        let other = list.take(len);
        assert_ne!(
            other.as_ptr(),
            address,
            "one buffer is never handed out twice"
        );
    }

    #[test]
    fn a_buffer_twice_as_large_is_better_than_none_and_a_close_one_better_than_that() {
        let list = FreeList::default();
        let len = 64 * SMALLEST + 54_321;
        let addresses = [len + len / 4, 2 * len, len + len / 16].map(|capacity| {
            let buffer = Vec::with_capacity(capacity);
            let address = Vec::as_ptr(&buffer);
            list.give(buffer);
            address
        });
        // All are held, so that none is freed and its address given out again.
        let taken = [0; 4].map(|_| list.take(len));
        let found = taken.each_ref().map(Vec::as_ptr);
        assert_eq!(found[..3], [addresses[2], addresses[0], addresses[1]]);
        assert!(!addresses.contains(&found[3]));
    }

    #[test]
    fn small_buffers_are_left_to_the_allocator() {
        let list = FreeList::default();
        list.give(Vec::with_capacity(SMALLEST / 2));
        assert!(list.lock().buffers.is_empty());
        list.give(Vec::with_capacity(SMALLEST));
        assert_eq!(list.lock().buffers.len(), 1);
        list.clear();
        assert!(list.lock().buffers.is_empty());
    }
}
