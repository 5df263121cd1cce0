// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>

namespace tessera::runtime::error_test {

TEST(Error, CarriesTheConcatenatedParts) {
  try {
    TESSERA_CHECK(1 > 2, "numel is {}, expected {}", 3, 4);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "numel is 3, expected 4");
  }
}

} // namespace tessera::runtime::error_test
