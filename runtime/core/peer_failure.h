// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which rank is to blame when several end with an error.

namespace tessera {

/// The environment variable with the abstract Unix datagram socket of the
/// launcher, without its leading zero byte. A rank's number sent there means
/// that what this rank fails of is another one's doing.
inline constexpr const char* kLauncherSocketVariable = "TESSERA_LAUNCHER";

/// To be called before an error is thrown whose cause is another rank: that it
/// failed, or has left. The launcher, if there is one, then returns the exit
/// code of the rank that failed by itself. Does not block.
void blame_peer() noexcept;

} // namespace tessera
