/* Writes where nothing is mapped: Xid 31 of this process's own context, and nothing else. */
__global__ void write_nowhere() { *(volatile int *)0x10 = 1; }

int main() {
  write_nowhere<<<1, 1>>>();
  return (int)cudaDeviceSynchronize();
}
