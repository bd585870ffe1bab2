/* Ping-pong between the first and the last rank, then AllReduces of floats: prints the times that rank 0 sees. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int rank, size, times = atoi(argv[2]);
	long bytes = atol(argv[1]), count = bytes / sizeof(float);
	char byte[8] = "";
	float *own, *sum;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	own = malloc(bytes);
	sum = malloc(bytes);
	for (long i = 0; i < count; i++)
		own[i] = rank;
	for (int i = 0; i < times; i++) {
		double begun;

		MPI_Barrier(MPI_COMM_WORLD);
		begun = MPI_Wtime();
		if (rank == 0) {
			MPI_Send(byte, 8, MPI_CHAR, size - 1, 0, MPI_COMM_WORLD);
			MPI_Recv(byte, 8, MPI_CHAR, size - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			printf("ping-pong %.9f\n", MPI_Wtime() - begun);
		} else if (rank == size - 1) {
			MPI_Recv(byte, 8, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(byte, 8, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
		}
	}
	for (int i = 0; i < times; i++) {
		double begun;

		MPI_Barrier(MPI_COMM_WORLD);
		begun = MPI_Wtime();
		MPI_Allreduce(own, sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		if (rank == 0)
			printf("allreduce %.9f %g\n", MPI_Wtime() - begun, sum[count - 1]);
	}
	fflush(stdout);
	MPI_Finalize();
	return 0;
}
