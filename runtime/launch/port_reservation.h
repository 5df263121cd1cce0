// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PortReservation` reserves the TCP port for the rendezvous of the ranks.

#include "tessera/runtime/core/unique_fd.h"

namespace tessera::runtime {

/// Reserves a TCP port for rank 0 to listen on. It binds the port with
/// SO_REUSEADDR but does not listen on it: no other process gets it as an
/// ephemeral port while the ranks are loading, and rank 0's store, which sets
/// SO_REUSEADDR too, can bind it as well.
class PortReservation {
 public:
  /// @param port the port, or 0 for any free one.
  /// @throws Error when another process is listening on the port.
  explicit PortReservation(int port);

  int port() const {
    return port_;
  }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

} // namespace tessera::runtime
