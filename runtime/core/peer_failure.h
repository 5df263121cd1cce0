// SPDX-License-Identifier: Apache-2.0
#pragma once
// `blame_peer()` tells the launcher that another rank caused the error of this
// one.

namespace tessera::runtime {

/// The environment variable with the name of the launcher's abstract Unix
/// datagram socket, without its leading zero byte. A rank that sends its number
/// there says that its failure was caused by another rank.
inline constexpr const char* kLauncherSocketVariable = "TESSERA_LAUNCHER";

/// Call this before throwing an error caused by another rank, because that rank
/// failed or has left the job. The launcher, if any, then returns the exit code
/// of the rank that failed first by itself. Does not block.
void blame_peer() noexcept;

} // namespace tessera::runtime
