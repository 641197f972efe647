// The attention kernels of prompts where keys, queries, windows and maxima meet borders of tiles,
// halves and chunks, against softmax in double precision (prefill_attention_core.h).
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "prefill_attention_core.h"

using namespace npu;
using namespace npu::prefill_attention_test;

// Tiles have eight positions, objects a half, chunks two of them.
TEST_CASE("prefill attention: keys, queries and windows that end at borders, or one key") {
  each_build([](const Build& build) {
    unsigned seed = 200;
    for (const int dim : {64, 128, 256}) {
      const int half = Task(build, dim, 1, 0).half();
      std::vector<int> borders;
      for (const int border : {0, 8, half, 2 * half, 3 * half, 4 * half}) {
        for (const int place : {border - 1, border, border + 1}) {
          if (place >= 0 && place < 6 * half) borders.push_back(place);
        }
      }
      for (const int place : borders) {
        CAPTURE(dim);
        CAPTURE(place);
        Task one(build, dim, 3, seed++, 2);
        one.job.keys_from = place, one.job.keys_end = place + 1;
        check(one, run(build, one));
        Task ends(build, dim, 3, seed++, 3);
        ends.job.keys_end = place + 1;
        check(ends, run(build, ends));
        Task causal(build, dim, 3, seed++, 3);
        causal.job.causal = 1, causal.job.query_position = place - 4;
        causal.job.window = 1 + place % 13;
        check(causal, run(build, causal));
      }
    }
  });
}

TEST_CASE("prefill attention: the largest score lies in every half, at every distance") {
  each_build([](const Build& build) {
    for (const int dim : {64, 128, 256}) {
      for (const float step : {0.6f, 7.0f, 90.0f, 150.0f, 400.0f}) {  // of scores, in log2 units
        for (int top = 0; top < 6; ++top) {
          CAPTURE(dim);
          CAPTURE(step);
          CAPTURE(top);
          Task task(build, dim, 3, unsigned(300 + top), 0);
          task.set_scale(static_cast<float>(1 / kLog2e));
          for (size_t i = 0; i < task.q.size(); i += at(dim)) task.q[i] = bf16_word(1);
          // Scores rise to half `top` and fall behind it; within a half they alternate.
          for (int key = 0; key < task.keys(); ++key) {
            const int away = std::abs(key / task.half() - top);
            std::fill_n(task.k.begin() + key * dim, dim, uint16_t{0});
            task.k[at(key * dim)] =
                bf16_word(step * static_cast<float>(2 - away) - static_cast<float>(key & 1));
          }
          check(task, run(build, task));
        }
      }
    }
  });
}

TEST_CASE("prefill attention: npu1 leaves out halves of V that no row of a core sees") {
  each_build([](const Build& build) {
    for (const int dim : {64, 128, 256}) {
      CAPTURE(dim);
      Task task(build, dim, 4, 19);
      if (!task.npu1) return;  // values share exponents, weights of zero multiply them
      const int half = task.half();
      task.job.causal = 1, task.job.window = half, task.job.query_position = 4 * half;
      const std::vector<float> before = run(build, task);
      check(task, before);
      for (int key = 0; key < task.keys(); ++key) {
        const bool seen = key / half >= 3 && key / half <= (4 * half + 15) / half;
        if (seen) continue;
        for (int i = 0; i < dim; ++i) task.v[at(key * dim + i)] = 0x7F80;
      }
      CHECK(run(build, task) == before);
    }
  });
}
