// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks of the memory accesses of kernels that were compiled as C++, as
// compute-sanitizer has for devices:
//
//   memcheck   an access outside of a buffer that add_buffer() names
//   initcheck  a read of shared memory that the block has not written
//   racecheck  two accesses to a byte, one of them a write, by threads of a
//              block with no barrier between, or (not of shared memory) by two
//              blocks of a launch
//
// An access that is wrong ends the program with a message. Accesses to other
// memory, such as a kernel's arguments, are not checked.
//
// The compiler calls the checks: it compiles kernels with -fsanitize=thread,
// and memory_checks.cpp has the functions that it calls, in place of
// ThreadSanitizer's. Builds with a real sanitizer have no checks.

#include <cstddef>
#include <cstdint>

namespace tessera::tests::cuda_shim {

/// Puts a __shared__ array where begin_block() finds it.
#define TESSERA_SHIM_SHARED_SECTION "cuda_shim_shared"

/// Names memory that kernels may access, in the middle of memory that nothing
/// else is in.
/// @param zone_begin, zone_end all of it; an access to this memory that is not
///   one to [begin, end) is wrong.
void add_buffer(
    const void* zone_begin,
    const void* begin,
    const void* end,
    const void* zone_end);
void remove_buffer(const void* zone_begin);

/// A kernel starts: what other launches did is ordered before it.
void begin_launch();
/// A block starts: its shared memory is not initialized, and filled with ones.
void begin_block();
/// All threads of the block are at a barrier.
void pass_barrier();
void end_launch();

/// Checks for accesses between begin_launch() and end_launch() by the thread in
/// `kernel`; what the compiler calls.
void check_access(const void* address, size_t bytes, bool is_write);

} // namespace tessera::tests::cuda_shim
