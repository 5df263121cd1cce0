// SPDX-License-Identifier: Apache-2.0
#pragma once
// The TCP port at which the ranks of a job meet.

#include "tessera/runtime/core/unique_fd.h"

namespace tessera {

/// Keeps a TCP port for rank 0 to listen on. The port is bound here but not
/// listened on, with SO_REUSEADDR: nobody else is given it as an ephemeral
/// port while the ranks are still loading, and rank 0's store, which sets
/// SO_REUSEADDR too, can bind it beside us.
class PortReservation {
 public:
  /// @param port the port wanted, or 0 for any free one.
  /// @throws Error when somebody listens on that port already.
  explicit PortReservation(int port);

  int port() const {
    return port_;
  }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

} // namespace tessera
