// SPDX-License-Identifier: Apache-2.0
#pragma once
// `report_uncaught_errors()` logs the exception that ends a program.

namespace tessera::runtime {

/// Has an exception that leaves main() or a thread logged as one message of its
/// rank, after which the process ends with exit code 1, as `tessera` does. The
/// default is text without the rank, LibTorch's stack frames in it, and
/// SIGABRT, as if the program were broken. `tessera launch` shows a message
/// once if several ranks have it. Does nothing if the program has set a
/// terminate handler, or if TESSERA_ABORT is 1 in the environment.
void report_uncaught_errors();

} // namespace tessera::runtime
