// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_none_held()` finds pages that gather scopes hold.

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/pages/page_table.h"

namespace tessera::sharding {

/// Checks that no gather scope holds a page. For functions that write to
/// shards or free them, before they have changed anything: what a scope has
/// whole would be neither the old values nor the new ones.
/// @param function named in the error.
/// @throws tessera::Error naming the group of such a page.
inline void check_none_held(const PageTable& pages, const char* function) {
  for (const auto& page : pages) {
    TESSERA_CHECK(
        page->pins.all == 0,
        "{}: group '{}' is held by a gather scope; nothing has changed. End the scope of gather() first.",
        function,
        page->name());
  }
}

} // namespace tessera::sharding
