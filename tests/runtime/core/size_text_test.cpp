// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/size_text.h"

#include <gtest/gtest.h>

namespace tessera::runtime::size_text_test {

TEST(SizeText, KeepsDigitsOfSmallSizes) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1536), "1.50 KiB");
  EXPECT_EQ(size_text(81920), "80.00 KiB");
  EXPECT_EQ(size_text(1 << 19), "0.50 MiB");
  EXPECT_EQ(size_text(int64_t{5} << 30), "5120.00 MiB");
}

} // namespace tessera::runtime::size_text_test
