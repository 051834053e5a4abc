// The inner loops for one graphics card; polyclinic/tensors/kernels/cuda.py lays out the data and calls them.
//
// Every sum has one order, cut by the data alone: chunks of CHUNK entries, blocks of FAN partial rows, slabs of SLAB
// rows, lanes of 8. No floating-point atomics anywhere, so the same data give the same bits, run after run.

typedef unsigned int u32;
typedef unsigned long long u64;

#define FAN 128    // partial rows that one thread adds in order
#define SLAB 1024  // rows whose products are summed into one partial Gram
#define TILE 32    // rows staged at a time

// ---- sixteen bytes of a row

__device__ __forceinline__ float4 none(float4) { return make_float4(0.f, 0.f, 0.f, 0.f); }
__device__ __forceinline__ double2 none(double2) { return make_double2(0., 0.); }
__device__ __forceinline__ float4 add(float v, float4 x, float4 t) {
  return make_float4(fmaf(v, x.x, t.x), fmaf(v, x.y, t.y), fmaf(v, x.z, t.z), fmaf(v, x.w, t.w));
}
__device__ __forceinline__ double2 add(double v, double2 x, double2 t) {
  return make_double2(fma(v, x.x, t.x), fma(v, x.y, t.y));
}
__device__ __forceinline__ float4 add(float4 y, float4 x, float4 t) {
  return make_float4(fmaf(y.x, x.x, t.x), fmaf(y.y, x.y, t.y), fmaf(y.z, x.z, t.z), fmaf(y.w, x.w, t.w));
}
__device__ __forceinline__ double2 add(double2 y, double2 x, double2 t) {
  return make_double2(fma(y.x, x.x, t.x), fma(y.y, x.y, t.y));
}
__device__ __forceinline__ float4 times(float4 y, float4 x) {
  return make_float4(y.x * x.x, y.y * x.y, y.z * x.z, y.w * x.w);
}
__device__ __forceinline__ double2 times(double2 y, double2 x) { return make_double2(y.x * x.x, y.y * x.y); }

// ---- MTTKRP. A chunk is at most 128 entries of one key; G lanes own it, each one piece of the row; rows are `stride` pieces apart.

// Three modes, codes of 16 bits, values that float32 holds: 8 bytes an entry (a | b << 16, value), sorted by a within a key,
// so that the row F1[a] is read once for a run of entries: acc += F1[a] * sum of v F2[b].
// chunks: (first entry, entries, output row or ~partial row, first patient of the tile: what `a` counts from).
template <typename T, typename P, int G>
__global__ void mttkrp3(const uint2* __restrict__ entries, const int4* __restrict__ chunks, int number,
                        const P* __restrict__ F1, const P* __restrict__ F2, u32 stride, P* __restrict__ out,
                        P* __restrict__ partial) {
  const int at = (blockIdx.x * blockDim.x + threadIdx.x) / G;
  const u32 lane = threadIdx.x % G;
  if (at >= number) return;  // whole groups only: no lane of a group is missing below
  const u32 mask = G == 32 ? 0xffffffffu : ((1u << G) - 1u) << (threadIdx.x % 32 / G * G);
  const int4 chunk = chunks[at];
  const uint2* mine = entries + (u32)chunk.x + lane;
  const P* left = F1 + (size_t)chunk.w * stride + lane;
  const P* right = F2 + lane;
  P acc = none(P()), run = none(P()), row = none(P());  // `row` is read when a run begins and used when it ends
  u32 now = 0xffffffffu;
  uint2 next = lane < chunk.y ? mine[0] : make_uint2(0u, 0u);
  for (int i0 = 0; i0 < chunk.y; i0 += G) {
    const uint2 these = next;
    if (i0 + G + (int)lane < chunk.y) next = mine[i0 + G];  // on its way while these are worked off
    const int m = min(G, chunk.y - i0);
#pragma unroll
    for (int i = 0; i < G; i += 4) {
      if (i >= m) break;
      u32 word[4];
      float value[4];
      P f[4];
#pragma unroll
      for (int u = 0; u < 4; u++) {
        word[u] = __shfl_sync(mask, these.x, i + u, G);
        value[u] = __uint_as_float(__shfl_sync(mask, these.y, i + u, G));
        f[u] = right[(word[u] >> 16) * stride];
      }
#pragma unroll
      for (int u = 0; u < 4; u++)
        if (i + u < m) {
          const u32 a = word[u] & 0xffffu;
          if (a != now) {
            acc = add(row, run, acc);
            run = none(P());
            row = left[a * stride];
            now = a;
          }
          run = add((T)value[u], f[u], run);
        }
    }
  }
  acc = add(row, run, acc);
  if (chunk.z >= 0)
    out[(size_t)chunk.z * stride + lane] = acc;
  else
    partial[(size_t)(~chunk.z) * stride + lane] = acc;
}

// Any number of modes, codes of 32 bits, float64 values. codes: (other modes, entries); factors: their addresses.
template <typename T, typename P, int G>
__global__ void mttkrpn(const u32* __restrict__ codes, const double* __restrict__ values, u64 entries, int others,
                        const int4* __restrict__ chunks, int number, const u64* __restrict__ factors,
                        u32 stride, P* __restrict__ out, P* __restrict__ partial) {
  const int at = (blockIdx.x * blockDim.x + threadIdx.x) / G, lane = threadIdx.x % G;
  if (at >= number) return;
  const int4 chunk = chunks[at];
  P acc = none(P());
  for (int i = 0; i < chunk.y; i++) {
    const u64 e = (u64)(u32)chunk.x + i;
    P product = ((const P*)factors[0])[(size_t)codes[e] * stride + lane];
    for (int m = 1; m < others; m++)
      product = times(product, ((const P*)factors[m])[(size_t)codes[m * entries + e] * stride + lane]);
    acc = add((T)values[e], product, acc);
  }
  if (chunk.z >= 0)
    out[(size_t)chunk.z * stride + lane] = acc;
  else
    partial[(size_t)(~chunk.z) * stride + lane] = acc;
}

// out[target] = rows first .. last of `in`, added in order in float64. spans: (first, last + 1, output row or ~row of `more`).
template <typename S, typename T>
__global__ void addrows(const S* __restrict__ in, const int4* __restrict__ spans, int number, int width,
                        T* __restrict__ out, double* __restrict__ more) {
  const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u64 which = at / width;
  const int column = at % width;
  if (which >= number) return;
  const int4 span = spans[which];
  double total = 0.0;
  for (int p = span.x; p < span.y; p++) total += (double)in[(size_t)p * width + column];
  if (span.z >= 0)
    out[(size_t)span.z * width + column] = (T)total;
  else
    more[(size_t)(~span.z) * width + column] = total;
}

// ---- least squares

// Numbers of one piece against four rows of a column-by-column table.
__device__ __forceinline__ float less(float4 g, const float* x, int s, float t) {
  return fmaf(-g.w, x[3 * s], fmaf(-g.z, x[2 * s], fmaf(-g.y, x[s], fmaf(-g.x, x[0], t))));
}
__device__ __forceinline__ double less(double2 g, const double* x, int s, double t) {
  return fma(-g.y, x[s], fma(-g.x, x[0], t));
}

// One row a thread. sweeps > 0: that many sweeps of a_r <- max(0, a_r + (m_r - sum_k g_rk a_k) / g_rr) (dead columns stay);
// sweeps = 0: one projected gradient step, a <- max(0, a - (a G - m) step). Rows have `width` columns, `rank` of them used.
// small: the Gram (rank x rank), 1 / diagonal (0: dead), what M is multiplied by. Shared memory: the Gram in rows of `four`
// (rank to a multiple of 4), both vectors, and the block's rows of A and M column by column, one number apart from the banks.
template <typename T, typename P>
__global__ void hals(T* __restrict__ A, const T* __restrict__ M, const double* __restrict__ small, int rows, int rank,
                     int width, int sweeps, double step) {
  extern __shared__ __align__(16) unsigned char room[];
  const int four = (rank + 3) / 4 * 4, n = blockDim.x, s = n + 1, each = sizeof(P) / sizeof(T);
  T* g = (T*)room;
  T* by = g + rank * four;
  T* a = by + four;
  T* m = a + four * s;
  for (int i = threadIdx.x; i < rank * four; i += n) g[i] = i % four < rank ? (T)small[i / four * rank + i % four] : (T)0;
  for (int r = threadIdx.x; r < rank; r += n) by[r] = sweeps ? (T)small[rank * rank + r] : (T)step;
  const int first = blockIdx.x * n, live = min(n, rows - first), wide = min(n, 32);
  for (int row = threadIdx.x / wide; row < live; row += n / wide)
    for (int r = threadIdx.x % wide; r < four; r += wide) {
      a[r * s + row] = r < rank ? A[(size_t)(first + row) * width + r] : (T)0;
      m[r * s + row] = r < rank ? M[(size_t)(first + row) * width + r] * (T)small[rank * (rank + 1) + r] : (T)0;
    }
  __syncthreads();
  if (threadIdx.x < live) {
    T* own = a + threadIdx.x;
    T* target = m + threadIdx.x;
    for (int turn = 0; turn < max(sweeps, 1); turn++)
      for (int r = 0; r < rank; r++) {
        if (sweeps && by[r] == (T)0) continue;  // the data say nothing about a dead column, so it stays
        T left = target[r * s];
        const P* line = (const P*)(g + r * four);
#pragma unroll 4
        for (int k = 0; k < four; k += each) left = less(line[k / each], own + k * s, s, left);
        const T now = fma(by[r], left, own[r * s]);
        (sweeps ? own : target)[r * s] = now > (T)0 ? now : (T)0;  // a step changes nothing before it has seen all
      }
  }
  __syncthreads();
  const T* done = sweeps ? a : m;
  for (int row = threadIdx.x / wide; row < live; row += n / wide)
    for (int r = threadIdx.x % wide; r < rank; r += wide) A[(size_t)(first + row) * width + r] = done[r * s + row];
}

// Columns of length 1, by the Gram's diagonal; a column of length 0 stays.
template <typename T>
__global__ void unit(T* __restrict__ A, const double* __restrict__ gram, u64 numbers, int rank, int width) {
  const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const int r = at % width;
  if (at >= numbers || r >= rank) return;
  const double length = sqrt(gram[r * (rank + 1)]);
  if (length > 0.0) A[at] = (T)((double)A[at] / length);
}

__device__ __forceinline__ void four_of(const float* x, float* y) { *(float4*)y = *(const float4*)x; }
__device__ __forceinline__ void four_of(const double* x, double* y) {
  *(double2*)y = *(const double2*)x;
  *(double2*)(y + 2) = *(const double2*)(x + 2);
}

// partial[slab] = A'B over SLAB rows: 4 x 4 results a thread, 64 x 64 a block; 32 rows are multiplied in T, then added in float64.
template <typename T>
__global__ void gram(const T* __restrict__ A, const T* __restrict__ B, int rows, int width, int rank,
                     double* __restrict__ partial) {
  __shared__ __align__(16) T left[TILE][68];
  __shared__ __align__(16) T right[TILE][68];
  const int x0 = blockIdx.y * 64, y0 = blockIdx.z * 64, x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;
  const int first = blockIdx.x * SLAB, last = min(rows, first + SLAB);
  const bool same = A == B && x0 == y0;
  T(*other)[68] = same ? left : right;
  double total[4][4] = {};
  for (int i0 = first; i0 < last; i0 += TILE) {
    for (int i = threadIdx.x; i < TILE * 64; i += blockDim.x) {
      const int row = i0 + i / 64, c = i % 64;
      left[i / 64][c] = row < last && x0 + c < rank ? A[(size_t)row * width + x0 + c] : (T)0;
      if (!same) right[i / 64][c] = row < last && y0 + c < rank ? B[(size_t)row * width + y0 + c] : (T)0;
    }
    __syncthreads();
    if (x0 + x < rank && y0 + y < rank && !(same && y < x)) {
      T part[4][4] = {};
#pragma unroll 4
      for (int i = 0; i < TILE; i++) {
        __align__(16) T l[4], r[4];
        four_of(&left[i][x], l);
        four_of(&other[i][y], r);
#pragma unroll
        for (int p = 0; p < 4; p++)
#pragma unroll
          for (int q = 0; q < 4; q++) part[p][q] = fma(l[p], r[q], part[p][q]);
      }
#pragma unroll
      for (int p = 0; p < 4; p++)
#pragma unroll
        for (int q = 0; q < 4; q++) total[p][q] += (double)part[p][q];
    }
    __syncthreads();
  }
  if (same && y < x) return;
  double* to = partial + (size_t)blockIdx.x * rank * rank;
#pragma unroll
  for (int p = 0; p < 4; p++)
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const int i = x0 + x + p, j = y0 + y + q;
      if (i < rank && j < rank) {
        to[(size_t)i * rank + j] = total[p][q];
        if (same && y > x) to[(size_t)j * rank + i] = total[p][q];
      }
    }
}

// ---- DPEM's E-step: the specification of em_kernels.py. Eight lanes a patient, lane l has phenotypes l, l + 8, ... (V of them).

#define UNIT 65536.0
#define SHARE 1073741824.0
#define LARGEST 1e15
#define SMALLEST 1e-150
#define LIFT 1e200

__device__ __forceinline__ u64 whole(double x, double most) {
  if (!(x > 0.0)) return 0;
  if (x >= most) return (u64)most;
  return (u64)x;
}

__device__ __forceinline__ double lanes(double x, u32 mask) {
  x = __dadd_rn(x, __shfl_xor_sync(mask, x, 4, 8));
  x = __dadd_rn(x, __shfl_xor_sync(mask, x, 2, 8));
  return __dadd_rn(x, __shfl_xor_sync(mask, x, 1, 8));
}

__device__ __forceinline__ u64 lanes(u64 x, u32 mask) {
  x += __shfl_xor_sync(mask, x, 4, 8);
  x += __shfl_xor_sync(mask, x, 2, 8);
  return x + __shfl_xor_sync(mask, x, 1, 8);
}

// order: patients of one bin of lengths; turns (modes, entries): entries of a patient sorted by row, bit 31 = last of its row;
// scratch: room for `longest` entries a group. out == nullptr: memberships only (placed).
template <int V>
__global__ void estep(const int* __restrict__ order, int patients, const long long* __restrict__ indptr,
                      const int* __restrict__ rows, const double* __restrict__ values, const u32* __restrict__ turns,
                      u64 entries, int modes, const double* __restrict__ w, const double* __restrict__ prior,
                      int rank, int steps, int longest, double* __restrict__ scratch, u64* __restrict__ out,
                      double* __restrict__ likelihood, double* __restrict__ placed) {
  const int lane = threadIdx.x % 8, group = (blockIdx.x * blockDim.x + threadIdx.x) / 8;
  const int groups = gridDim.x * blockDim.x / 8;
  const u32 mask = 0xffu << (threadIdx.x % 32 / 8 * 8);
  const int wide = 8 * V;
  double* phi = scratch + (size_t)group * longest * (wide * (out ? 2 + modes : 2) / 2 + 2 + modes);
  double* scales = phi + (size_t)longest * wide;
  int* homes = (int*)(scales + longest);                 // row of every run
  u32* runs = (u32*)(scales + (size_t)longest * (2 + modes));  // shares of every run, in steps of 2^-30
  for (int turn = group; turn < patients; turn += groups) {
    const int who = order[turn];
    const long long lo = indptr[who];
    const int n = (int)(indptr[who + 1] - lo);
    double top = 0.0;
    for (int e = lane; e < n; e += 8) top = fmax(top, values[lo + e]);
    for (int d = 4; d; d /= 2) top = fmax(top, __shfl_xor_sync(mask, top, d, 8));
    const double tame = top > LARGEST ? __ddiv_rn(LARGEST, top) : top < SMALLEST ? LIFT : 1.0;
#pragma unroll 4
    for (int e = 0; e < n; e++) {
      const int* home = rows + (lo + e) * modes;
#pragma unroll
      for (int v = 0; v < V; v++) {
        double f = w[(size_t)home[0] * wide + v * 8 + lane];
        for (int m = 1; m < modes; m++) f = __dmul_rn(f, w[(size_t)home[m] * wide + v * 8 + lane]);
        phi[((size_t)e * V + v) * 8 + lane] = f;
      }
    }
    double a[V], base[V], sum = 0.0;
#pragma unroll
    for (int v = 0; v < V; v++) {
      base[v] = prior[v * 8 + lane];
      sum = __dadd_rn(sum, base[v]);
    }
    double share = __ddiv_rn(1.0, lanes(sum, mask));
#pragma unroll
    for (int v = 0; v < V; v++) a[v] = __dmul_rn(base[v], share);
    double events = 0.0, logs = 0.0;
    for (int s = 0; s <= steps; s++) {  // the last pass keeps count / mix of every entry instead of moving
      if (s == steps && !out) break;
      double next[V];
#pragma unroll
      for (int v = 0; v < V; v++) next[v] = 0.0;
      for (int e0 = 0; e0 < n; e0 += 8) {
        double f[8][V], d[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
          d[j] = 0.0;
#pragma unroll
          for (int v = 0; v < V; v++) {
            f[j][v] = e0 + j < n ? phi[((size_t)(e0 + j) * V + v) * 8 + lane] : 0.0;
            d[j] = __dadd_rn(d[j], __dmul_rn(a[v], f[j][v]));
          }
        }
        double c[4], b[2];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const double keep = lane & 4 ? d[j + 4] : d[j], send = lane & 4 ? d[j] : d[j + 4];
          c[j] = __dadd_rn(keep, __shfl_xor_sync(mask, send, 4, 8));
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const double keep = lane & 2 ? c[j + 2] : c[j], send = lane & 2 ? c[j] : c[j + 2];
          b[j] = __dadd_rn(keep, __shfl_xor_sync(mask, send, 2, 8));
        }
        const double keep = lane & 1 ? b[1] : b[0], send = lane & 1 ? b[0] : b[1];
        const double mix = __dadd_rn(keep, __shfl_xor_sync(mask, send, 1, 8));  // of entry e0 + lane
        const double count = e0 + lane < n ? __dmul_rn(values[lo + e0 + lane], tame) : 0.0;
        const double scale = mix > 0.0 ? __ddiv_rn(count, mix) : 0.0;
        if (s < steps) {
#pragma unroll
          for (int j = 0; j < 8; j++) {
            const double by = __shfl_sync(mask, scale, j, 8);
            if (by > 0.0)
#pragma unroll
              for (int v = 0; v < V; v++) next[v] = __dadd_rn(next[v], __dmul_rn(by, f[j][v]));
          }
        } else {
          for (int j = 0; j < 8; j++) {
            const double one = __shfl_sync(mask, count, j, 8);
            if (e0 + j < n) events = __dadd_rn(events, one);
          }
          if (e0 + lane < n) {
            scales[e0 + lane] = mix > 0.0 ? scale : -count;  // below zero: a code that no phenotype knows
            if (mix > 0.0) logs += count * log(mix);
          }
        }
      }
      if (s == steps) break;
      sum = 0.0;
#pragma unroll
      for (int v = 0; v < V; v++) {
        next[v] = __dadd_rn(__dmul_rn(next[v], a[v]), base[v]);
        sum = __dadd_rn(sum, next[v]);
      }
      share = __ddiv_rn(1.0, lanes(sum, mask));
#pragma unroll
      for (int v = 0; v < V; v++) a[v] = __dmul_rn(next[v], share);
    }
    if (!out) {
#pragma unroll
      for (int v = 0; v < V; v++)
        if (v * 8 + lane < rank) placed[(size_t)who * rank + v * 8 + lane] = a[v];
      continue;
    }
    logs = lanes(logs, mask);
    if (lane == 0) likelihood[who] = logs / events;
    __syncwarp(mask);
    share = __ddiv_rn(1.0, events);
    u64 square = 0;
    int used = 0;
    for (int m = 0; m < modes; m++) {
      double s[V];
#pragma unroll
      for (int v = 0; v < V; v++) s[v] = 0.0;
      for (int t0 = 0; t0 < n; t0 += 4) {
        u32 word[4];
        double by[4], f[4][V];
#pragma unroll
        for (int u = 0; u < 4; u++) {
          word[u] = turns[m * entries + lo + min(t0 + u, n - 1)];
          const int e = word[u] & 0x7fffffffu;
          by[u] = scales[e];
#pragma unroll
          for (int v = 0; v < V; v++) f[u][v] = phi[((size_t)e * V + v) * 8 + lane];
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
          if (t0 + u >= n) break;
#pragma unroll
          for (int v = 0; v < V; v++) {
            const double p = by[u] > 0.0 ? __dmul_rn(a[v], f[u][v]) : a[v];
            s[v] = __dadd_rn(s[v], __dmul_rn(by[u] > 0.0 ? by[u] : -by[u], p));
          }
          if (word[u] >> 31) {
#pragma unroll
            for (int v = 0; v < V; v++) {
              const u32 q = (u32)whole(__dmul_rn(__dmul_rn(s[v], share), SHARE), SHARE);
              runs[((size_t)used * V + v) * 8 + lane] = q;
              if (v * 8 + lane < rank) square += (u64)(q + 1) * (q + 1);
              s[v] = 0.0;
            }
            if (lane == 0) homes[used] = rows[(lo + (word[u] & 0x7fffffffu)) * modes + m];
            used++;
          }
        }
      }
    }
    __syncwarp(mask);
    const double unit = __ddiv_rn(UNIT, __dsqrt_rn(__ull2double_rn(lanes(square, mask))));
    u64 length = 0;
    for (int t = 0; t < used; t++) {
      u64* to = out + (size_t)homes[t] * rank;
#pragma unroll
      for (int v = 0; v < V; v++)
        if (v * 8 + lane < rank) {
          const u64 k = whole(__dmul_rn((double)runs[((size_t)t * V + v) * 8 + lane], unit), UNIT);
          length += k * k;
          if (k) atomicAdd(to + v * 8 + lane, k);
        }
    }
    length = lanes(length, mask);
    if (length > (1ull << 32)) {  // rare: taken back exactly, one step less; if that is too long still, nothing at all
      length = 0;
      for (int pass = 0; pass < 2; pass++) {
        const bool counted = lanes(length, mask) <= (1ull << 32);
        for (int t = 0; t < used; t++)
#pragma unroll
          for (int v = 0; v < V; v++)
            if (v * 8 + lane < rank) {
              const u64 k = whole(__dmul_rn((double)runs[((size_t)t * V + v) * 8 + lane], unit), UNIT);
              const u64 less = k ? k - 1 : 0;
              if (pass == 0)
                length += less * less;
              else
                atomicAdd(out + (size_t)homes[t] * rank + v * 8 + lane, (counted ? less : 0ull) - k);
            }
      }
    }
    __syncwarp(mask);
  }
}
