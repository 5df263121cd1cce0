// SPDX-License-Identifier: Apache-2.0
// Tells the launcher what a rank tells it that fails because of another one.
#include "tessera/runtime/core/peer_failure.h"

int main() {
  tessera::runtime::blame_peer();
}
